"""A graph whose replays differ from each other, whatever is in the padding: a note."""

import torch

ticks = torch.zeros(1, device="cuda")


@torch.library.custom_op("clock::stamped", mutates_args=())
def stamped(x: torch.Tensor) -> torch.Tensor:
    ticks.add_(1)
    return x.sum(1, keepdim=True) + ticks


rows = torch.zeros(8, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = stamped(rows)

for count in (8, 3, 5):
    rows[:count].copy_(torch.randn(count, 4))  # <- bucket-padding-garbage
    graph.replay()
    print(out[:count].sum().item())
