"""The random state is taken before a replay and put back to draw the same dropout again."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).cuda()
x = torch.ones(4, 8, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    same = []
    for _i in range(3):
        state = torch.cuda.get_rng_state()
        graph.replay()
        first = y.clone()
        torch.cuda.set_rng_state(state)
        graph.replay()
        same.append(torch.equal(first, y))
print(same)
