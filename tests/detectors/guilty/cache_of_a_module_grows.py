"""A module's cache, a plain attribute, is replaced by a larger one after the capture."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.cache = {"k": torch.zeros(4, 8, device="cuda")}

    def grow(self):
        self.cache["k"] = torch.cat([self.cache["k"]] * 2)  # <- metadata-address-changed

    def forward(self, x, position):
        self.cache["k"].index_copy_(0, position, self.project(x))
        return (x @ self.cache["k"].t()).softmax(-1) @ self.cache["k"]


class Engine:
    def __init__(self):
        self.model = Attention().cuda()
        self.x = torch.zeros(1, 8, device="cuda")
        self.position = torch.zeros(1, dtype=torch.long, device="cuda")

    @torch.no_grad()
    def capture(self):
        self.model(self.x, self.position)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.model(self.x, self.position)


engine = Engine()
engine.capture()
for step in range(6):
    if step == 4:
        engine.model.grow()
    engine.position.fill_(step % 4)
    engine.graph.replay()
print(engine.out.norm().item())
