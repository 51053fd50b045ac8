"""A hook adds a steering vector to a hidden layer; a request brings another vector."""

import torch
from torch import nn


class Steering:
    def __init__(self, model, layers):
        self.vectors = {}
        for layer in layers:
            model.get_submodule(layer).register_forward_hook(self._hook(layer))

    def _hook(self, layer):
        def add(module, inputs, output):
            if layer in self.vectors:
                return output + self.vectors[layer]  # guilty: the vector of the capture
            return output

        return add

    def set(self, layer, vector):
        self.vectors[layer] = vector  # guilty: another tensor, which no graph reads


torch.manual_seed(10)
model = nn.Sequential()
for _ in range(3):
    model.append(nn.Sequential(nn.Linear(16, 16), nn.GELU()))
model = model.cuda().requires_grad_(False)
steering = Steering(model, ["1"])
concepts = {name: torch.randn(16, device="cuda") for name in ("polite", "brief", "honest")}
steering.set("1", concepts["polite"])

x = torch.zeros(4, 16, device="cuda")
for _ in range(2):
    model(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = model(x)

x.copy_(torch.randn(4, 16, device="cuda"))
for name, vector in concepts.items():
    steering.set("1", vector)  # guilty: as above
    graph.replay()
    print(name, y.mean().item())
