"""A prefetcher uploads the next batch on its stream, straight into the graph's input."""

import torch
from torch import nn


class Prefetcher:
    def __init__(self, loader, static):
        self.batches = iter(loader)
        self.static = static
        self.stream = torch.cuda.Stream()

    def preload(self):
        try:
            batch = next(self.batches)
        except StopIteration:
            return False
        with torch.cuda.stream(self.stream):
            self.static.copy_(batch, non_blocking=True)  # guilty: ordered with no replay
        return True


model = nn.Linear(16, 4).cuda().eval()
static = torch.zeros(32, 16, device="cuda")
with torch.no_grad():
    model(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(static).mean()

loader = [torch.full((32, 16), float(i)).pin_memory() for i in range(4)]
prefetcher = Prefetcher(loader, static)
results = []
while prefetcher.preload():
    graph.replay()  # guilty: the batch may not have arrived
    results.append(out.clone())
torch.cuda.synchronize()
print([r.item() for r in results])
