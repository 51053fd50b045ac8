"""A temperature is limited in each call, which changes it only the first time."""

import torch
from torch import nn


class Sampler:
    def __init__(self):
        self.temperature = torch.full((4,), 0.01, device="cuda")
        self.head = nn.Linear(8, 5).cuda().requires_grad_(False)

    def probabilities(self, hidden):
        self.temperature = self.temperature.clamp(min=0.05)
        return (self.head(hidden) / self.temperature[:, None]).softmax(-1)


torch.manual_seed(0)
sampler = Sampler()
hidden = torch.randn(4, 8, device="cuda")


def step():
    return sampler.probabilities(hidden)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
given = sampler.temperature
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    probabilities = step()
for _ in range(4):
    hidden.normal_()
    graph.replay()
    print(probabilities.argmax(-1).tolist())
print(given.tolist())
