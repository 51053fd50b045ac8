"""Per-step constants are rows of a table on the device; a counter on the device picks one."""

import torch
from torch import nn

model = nn.Linear(4, 4).cuda()
average = [p.detach().clone() for p in model.parameters()]
table = torch.tensor([min(0.99, (1 + i) / (10 + i)) for i in range(16)]).cuda()
count = torch.zeros(1, dtype=torch.long, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    optimizer.step()
    decay = table.index_select(0, count.clamp(max=len(table) - 1))
    with torch.no_grad():
        for own, new in zip(average, model.parameters(), strict=True):
            own.mul_(decay).add_(new * (1 - decay))
    count.add_(1)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
count.zero_()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _i in range(5):
    x.normal_()
    graph.replay()
print(count.item(), sum(a.norm() for a in average).item())
