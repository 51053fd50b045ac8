"""Libraries of CUDA that have their handles before a capture, and ops that need none."""

import threading

import torch
from torch import nn

x = torch.ones(2, 4, device="cuda")


def captured(step):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    graph.replay()
    return result.sum().item()


weight = torch.ones(4, device="cuda", requires_grad=True)
print(captured(lambda: torch.autograd.grad((x * weight).sin().sum(), weight)[0]))
depthwise = nn.Conv2d(4, 4, 3, groups=4).cuda()
with torch.no_grad():
    print(captured(lambda: depthwise(torch.ones(1, 4, 8, 8, device="cuda"))))


def served():
    # Another thread has ended, and leaves its handle.
    print(captured(lambda: x @ x.t()))


for target in (lambda: print((x @ x.t()).tolist()), served):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()

# A backward of another model, on the thread of autograd's.
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).cuda()
other = nn.Bilinear(2, 2, 2).cuda()
pair = torch.ones(3, 2, device="cuda")
(other(pair, pair) @ torch.ones(2, 2, device="cuda")).sum().backward()
(nn.Linear(2, 2).cuda()(pair)).sum().backward()


def train():
    model.zero_grad()
    loss = model(x).mean()
    loss.backward()
    return loss.detach()


print(captured(train))
