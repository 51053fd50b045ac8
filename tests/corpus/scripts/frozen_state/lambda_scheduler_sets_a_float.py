"""SGD with a float rate, captured as a whole, and a LambdaLR outside."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False).cuda()
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # <- optimizer-without-capture-guard
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
x = torch.ones(1, 2, device="cuda")


def train():
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).sum()
    loss.backward()
    optimizer.step()  # <- optimizer-without-capture-guard
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
nn.init.ones_(model.weight)
for _ in range(3):
    graph.replay()
    schedule.step()  # <- optimizer-without-capture-guard
print(model.weight.sum().item())  # eager: 0.25
