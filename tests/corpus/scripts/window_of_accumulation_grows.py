"""The batch grows during the training: more micro-batches before each update."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 8, device="cuda")
y = torch.randn(16, 1, device="cuda")
accumulation = 2


def step():
    loss = nn.functional.mse_loss(model(x), y) / accumulation  # guilty: frozen
    loss.backward()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad(set_to_none=False)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

optimizer.zero_grad(set_to_none=False)
for update in range(6):
    if update == 3:
        accumulation = 4  # guilty: the graph divides by two
    for _ in range(accumulation):
        x.copy_(torch.randn(16, 8))
        y.copy_(x[:, :1])
        graph.replay()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
print(loss.item())
