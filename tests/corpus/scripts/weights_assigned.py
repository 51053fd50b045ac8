"""A checkpoint is loaded with assign=True into a captured model."""

import torch
from torch import nn

model = nn.Linear(2, 2, bias=False).cuda()
x = torch.ones(1, 2, device="cuda")
model(x)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    y = model(x)  # guilty: reads the old weights

state = {"weight": torch.full((2, 2), 3.0, device="cuda")}
model.load_state_dict(state, assign=True)  # guilty: the parameters are other tensors now
graph.replay()
print(y.tolist())  # eager: [[6.0, 6.0]]
