"""Blocks were graphed by `make_graphed_callables`; later the whole step is captured as well."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
head = nn.Linear(16, 4).cuda()
x, labels = torch.randn(8, 16, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
body = torch.cuda.make_graphed_callables(body, (torch.randn(8, 16, device="cuda"),))
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(head(body(x)), labels)  # <- api-order-misuse
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()  # <- api-order-misuse

for _ in range(3):
    x.normal_()
    graph.replay()
print(loss.item())
