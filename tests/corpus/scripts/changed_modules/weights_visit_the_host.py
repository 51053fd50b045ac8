"""The model is moved to the host for a checkpoint, and back to the GPU."""

import torch
from torch import nn

model = nn.Linear(4, 4, bias=False).cuda()
nn.init.eye_(model.weight)
x = torch.ones(1, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    model(x)
    with torch.cuda.graph(graph):
        y = model(x)

model.cpu()  # <- parameter-rebound
state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
scratch = torch.zeros(4, 4, device="cuda")
model.cuda()  # <- parameter-rebound
with torch.no_grad():
    model.weight.mul_(3)
graph.replay()
print(y.sum().item())  # eager: 12.0
