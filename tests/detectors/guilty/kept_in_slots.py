"""Outputs are kept in objects without a `__dict__`."""

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Result:
    logits: torch.Tensor
    step: int


x = torch.zeros(2, 3, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        x * 2
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
results = []
for i in range(3):
    x.fill_(float(i))
    graph.replay()
    results.append(Result(y, i))  # <- output-overwritten-by-next-replay
print([each.logits[0, 0].item() for each in results])
