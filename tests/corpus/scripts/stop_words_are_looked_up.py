"""A logits processor sends the list of banned tokens to the device in each step."""

import torch
from torch import nn


class BanTokens:
    def __init__(self, banned):
        self.banned = banned

    def __call__(self, logits):
        index = torch.tensor(
            self.banned, device=logits.device
        )  # guilty: copied from pageable memory
        return logits.index_fill(-1, index, float("-inf"))


head = nn.Linear(8, 32).cuda().eval()
processors = [BanTokens([3, 5]), lambda logits: logits / 0.7]
hidden = torch.randn(2, 8, device="cuda")


@torch.inference_mode()
def step():
    logits = head(hidden)
    for processor in processors:
        logits = processor(logits)
    return logits.argmax(-1)


step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    tokens = step()
graph.replay()
print(tokens.tolist())
