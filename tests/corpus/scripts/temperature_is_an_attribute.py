"""A server changes the temperature of its sampler by attribute."""

import torch


class Sampler:
    def __init__(self, logits):
        self.logits = logits
        self.temperature = 1.0
        self.graph = torch.cuda.CUDAGraph()
        self.run()
        with torch.cuda.graph(self.graph):
            self.out = self.run()

    def run(self):
        return self.logits / self.temperature  # guilty: the temperature of the capture

    def __call__(self):
        self.graph.replay()
        return self.out


sampler = Sampler(torch.full((4,), 8.0, device="cuda"))
sampler.temperature = 4.0  # guilty: replays do not see it
print(sampler()[0].item())  # eager: 2.0
