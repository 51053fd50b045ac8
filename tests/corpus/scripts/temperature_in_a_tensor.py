"""A server changes the temperature of its sampler by filling a tensor."""

import torch


class Sampler:
    def __init__(self, logits):
        self.logits = logits
        self.temperature = torch.ones((), device=logits.device)
        self.graph = torch.cuda.CUDAGraph()
        self.run()
        with torch.cuda.graph(self.graph):
            self.out = self.run()

    def run(self):
        return self.logits / self.temperature

    def __call__(self, temperature):
        self.temperature.fill_(temperature)
        self.graph.replay()
        return self.out.clone()


sampler = Sampler(torch.full((4,), 8.0, device="cuda"))
hot, cold = sampler(4.0), sampler(0.5)
print(hot[0].item(), cold[0].item())  # eager: 2.0 16.0
