import copy
import math

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)).cuda()
average = copy.deepcopy(model).eval().requires_grad_(False)
lr = torch.tensor(1e-2, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, capturable=True)
x = torch.randn(32, 16, device="cuda")
y = torch.randint(3, (32,), device="cuda")


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

running = torch.zeros((), device="cuda")
for step in range(30):
    lr.fill_(1e-2 * 0.5 * (1 + math.cos(math.pi * step / 30)))
    x.copy_(torch.randn(32, 16, device="cuda"))
    y.copy_(torch.randint(3, (32,), device="cuda"))
    graph.replay()
    running += loss.detach()
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
with torch.no_grad():
    print(running.item() / 30, average(x).argmax(-1).eq(y).float().mean().item())
