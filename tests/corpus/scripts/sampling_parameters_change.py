import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 10


class Sampler(nn.Module):
    def __init__(self, params):
        super().__init__()
        self.params = params

    def forward(self, logits):
        logits = logits / self.params.temperature
        kth = logits.topk(self.params.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
        return torch.multinomial(logits.softmax(-1), 1)


params = SamplingParams()
model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50), Sampler(params)).cuda().eval()
tokens = torch.zeros(4, dtype=torch.int64, device="cuda")
with torch.inference_mode():
    for _ in range(3):
        model(tokens)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampled = model(tokens)
    for temperature in (1.0, 0.7, 0.1):
        params.temperature = temperature  # guilty: a number in the graph
        for _ in range(3):
            graph.replay()
            tokens.copy_(sampled[:, 0])
        print(temperature, tokens.tolist())
