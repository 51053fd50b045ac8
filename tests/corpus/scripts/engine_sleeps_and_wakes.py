"""An engine moves its weights to the host and back."""

import torch
from torch import nn


class Engine:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)).cuda()
        self.inp = torch.zeros(2, 8, device="cuda")
        self.graph = None

    @torch.no_grad()
    def capture(self):
        self.model(self.inp)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.model(self.inp)

    def sleep(self):
        self.model.to("cpu")  # guilty: the weights leave their memory
        torch.cuda.empty_cache()

    def wake_up(self):
        self.model.to("cuda")  # guilty: they come back to other memory

    def run(self, x):
        self.inp.copy_(x)
        self.graph.replay()
        return self.out.clone()


e = Engine()
e.capture()
print(e.run(torch.randn(2, 8, device="cuda")).sum().item())
e.sleep()
e.wake_up()
print(e.run(torch.randn(2, 8, device="cuda")).sum().item())
