"""A change of the settings drops the graph, and the next call captures another one."""

import torch

x = torch.ones(2, device="cuda")


class Sampler:
    def __init__(self):
        self.temperature = 1.0
        self.graph = None

    def set(self, temperature):
        if temperature != self.temperature:
            self.temperature = temperature
            self.graph = None

    def forward(self):
        return x / self.temperature

    def __call__(self):
        if self.graph is None:
            self.forward()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = self.forward()
        self.graph.replay()
        return self.y.clone()


sampler = Sampler()
values = []
for temperature in (1.0, 2.0, 2.0, 4.0):
    sampler.set(temperature)
    values.append(sampler()[0].item())
print(values)  # eager: [1.0, 0.5, 0.5, 0.25]
