"""Methods bind inputs in slots to other tensors; the old ones are kept."""

import torch


class Ping:
    __slots__ = ("echo", "samples")

    def __init__(self, samples):
        self.samples = samples
        self.echo = torch.zeros(8, device="cuda")

    def refresh(self, seed):
        self.samples = self.make(seed)  # <- metadata-address-changed

    def reset(self):
        self.samples = torch.zeros(8, device="cuda")

    def make(self, seed):
        return torch.randn(8, device="cuda") + seed

    def hear(self):
        new = torch.randn(8, device="cuda")
        self.echo = new  # <- metadata-address-changed

    def run(self):
        return self.samples * self.echo


ping = Ping(torch.zeros(8, device="cuda"))
ping.run()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = ping.run()
kept = [ping.samples, ping.echo]
graph.replay()
ping.hear()
for seed in range(3):
    ping.refresh(seed)
    graph.replay()
print(out.sum().item())
