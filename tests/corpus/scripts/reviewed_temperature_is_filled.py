from types import SimpleNamespace

import torch

params = SimpleNamespace(temperature=torch.ones((), device="cuda"))
logits = torch.ones(4, device="cuda")


def sample():
    return logits / params.temperature


for _ in range(3):
    sample()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = sample()
for temperature in (1.0, 0.5):
    params.temperature.fill_(temperature)
    graph.replay()
print(y.sum().item())  # eager: 8.0
