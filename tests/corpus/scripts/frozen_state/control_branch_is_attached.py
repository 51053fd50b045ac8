"""A control branch is attached to the pipeline after the graph was captured without one."""

import torch
from torch import nn


class Pipeline:
    def __init__(self):
        self.unet = nn.Linear(8, 8).cuda().eval()
        self.control = None
        self.latents = torch.zeros(1, 8, device="cuda")
        self.hint = torch.zeros(1, 8, device="cuda")
        self.graph = torch.cuda.CUDAGraph()

    @torch.inference_mode()
    def forward(self):
        noise = self.unet(self.latents)
        if self.control is not None:  # <- control-flow-frozen
            noise = noise + self.control(self.hint)
        return noise

    def compile(self):
        self.forward()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.out = self.forward()

    def __call__(self, latents):
        self.latents.copy_(latents)
        self.graph.replay()
        return self.out.clone()


pipe = Pipeline()
pipe.compile()
print(pipe(torch.ones(1, 8)).sum().item())
pipe.control = nn.Linear(8, 8).cuda().eval()  # <- control-flow-frozen
pipe.hint.fill_(1)
print(pipe(torch.ones(1, 8)).sum().item())
