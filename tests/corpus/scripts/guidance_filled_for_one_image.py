"""`with pipe.guided(3.0):` fills a tensor for one image and restores it afterwards."""

from contextlib import contextmanager

import torch
from torch import nn


class Pipe:
    def __init__(self, width=8, steps=4):
        self.net = nn.Sequential(nn.Linear(width + 1, 32), nn.SiLU(), nn.Linear(32, width)).cuda()
        self._scale = torch.tensor(7.5, device="cuda")
        self.scale = 7.5
        self.latent = torch.zeros(1, width, device="cuda")
        self.prompt = torch.zeros(1, 1, device="cuda")
        self.steps = steps

    @contextmanager
    def guided(self, scale):
        before, self.scale = self.scale, scale
        self._scale.fill_(self.scale)
        try:
            yield self
        finally:
            self.scale = before
            self._scale.fill_(before)

    def denoise(self):
        both = torch.cat([self.latent, self.latent])
        condition = torch.cat([torch.zeros_like(self.prompt), self.prompt])
        free, bound = self.net(torch.cat([both, condition], 1)).chunk(2)
        self.latent.sub_((free + self._scale * (bound - free)) / self.steps)

    def __call__(self, prompt):
        self.prompt.fill_(prompt)
        self.latent.normal_()
        for _ in range(self.steps):
            self.graph.replay()
        return self.latent.clone()


torch.manual_seed(0)
with torch.no_grad():
    pipe = Pipe()
    pipe.denoise()
    torch.cuda.synchronize()
    pipe.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(pipe.graph):
        pipe.denoise()
    images = {pipe.scale: pipe(0.5)}
    with pipe.guided(3.0):
        images[pipe.scale] = pipe(0.5)
    images["again"] = pipe(0.5)
    print({key: image.mean().item() for key, image in images.items()})
