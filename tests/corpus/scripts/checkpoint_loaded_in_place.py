"""A checkpoint is loaded into a captured model, in place."""

import torch
from torch import nn

model = nn.Linear(2, 2, bias=False).cuda()
x = torch.ones(1, 2, device="cuda")
model(x)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    y = model(x)

model.load_state_dict({"weight": torch.full((2, 2), 3.0)})
graph.replay()
print(y.tolist())  # eager: [[6.0, 6.0]]
