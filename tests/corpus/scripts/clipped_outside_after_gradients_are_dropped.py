"""Forward and backward are captured; the step stays eager. Gradients are set to None."""

# A replay writes the gradients into the memory of the capture, but `p.grad` is None after
# `zero_grad()`: clipping and the step see no gradient, and the weights stay.

import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
x = torch.randn(8, 4, device="cuda")

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)

optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = model(x).square().mean()
    loss.backward()  # guilty: writes gradients that nobody sees

for _ in range(5):
    x.normal_()
    optimizer.zero_grad()  # guilty: p.grad becomes None
    graph.replay()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # guilty: no gradient is there
    optimizer.step()  # guilty: does nothing
print(float(norm), loss.item())
