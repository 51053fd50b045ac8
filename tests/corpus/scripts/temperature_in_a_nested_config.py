"""The temperature of a sampler is a number in a nested config."""

import dataclasses

import torch


@dataclasses.dataclass
class Sampling:
    temperature: float = 1.0


@dataclasses.dataclass
class Cfg:
    sampling: Sampling = dataclasses.field(default_factory=Sampling)


class Decoder:
    def __init__(self, cfg):
        self.cfg = cfg
        self.logits = torch.randn(4, 32, device="cuda")

    def sample(self):
        return (self.logits / self.cfg.sampling.temperature).softmax(-1)

    def capture(self):
        self.sample()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.p = self.sample()

    def __call__(self):
        self.graph.replay()
        return self.p.clone()


d = Decoder(Cfg())
d.capture()
for t in (1.0, 0.7, 0.2):
    d.cfg.sampling.temperature = t  # guilty: the graph keeps the first temperature
    print(d().max().item())
