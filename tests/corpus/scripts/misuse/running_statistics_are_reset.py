"""Batch norm in a captured step: its statistics are reset in place at the start of each epoch."""

import torch
from torch import nn

torch.manual_seed(0)
norm = nn.BatchNorm1d(8)
model = nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.zeros(16, 4, device="cuda")


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for epoch in range(2):
    norm.reset_running_stats()
    for _ in range(5):
        x.normal_()
        graph.replay()
    print(epoch, norm.num_batches_tracked.item())
# eager: 0 5
# eager: 1 5
