"""Adam with a tensor as its rate; LambdaLR outside writes to it."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False).cuda()
nn.init.ones_(model.weight)
rate = torch.tensor(0.5, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
x = torch.ones(1, 2, device="cuda")


def train():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train()
with torch.no_grad():
    model.weight.fill_(1.0)
for _ in range(3):
    graph.replay()
    schedule.step()
print(model.weight.sum().item())  # eager: 0.25
