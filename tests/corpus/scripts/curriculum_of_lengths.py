"""The sequence length of the curriculum is a global number which the epochs raise."""

import torch
from torch import nn

model = nn.GRU(4, 8, batch_first=True).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(2, 16, 4, device="cuda")
length = 4


def step():
    optimizer.zero_grad(set_to_none=True)
    out, _ = model(x[:, :length])  # guilty: the length of the capture
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

for epoch in range(3):
    for _ in range(2):
        x.normal_()
        graph.replay()
    length *= 2  # guilty: replays do not see it
    print(epoch, loss.item())
