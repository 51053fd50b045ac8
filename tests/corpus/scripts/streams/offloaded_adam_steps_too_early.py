"""Adam on the host: gradients are copied to pinned memory, and the weights come back."""

import torch
from torch import nn
from torch.nn import functional


class OffloadedAdam:
    def __init__(self, model, lr):
        self.weights = list(model.parameters())
        self.masters = [w.detach().cpu().clone() for w in self.weights]
        self.host_grads = [torch.zeros(w.shape, pin_memory=True) for w in self.weights]
        for master, grad in zip(self.masters, self.host_grads, strict=True):
            master.grad = grad
        self.adam = torch.optim.Adam(self.masters, lr=lr)

    @torch.no_grad()
    def step(self):
        for weight, host in zip(self.weights, self.host_grads, strict=True):
            host.copy_(weight.grad, non_blocking=True)
        self.adam.step()  # <- unsynchronized-io
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.copy_(master)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).cuda()
optimizer = OffloadedAdam(model, 1e-3)
x = torch.zeros(16, 32, device="cuda")
y = torch.zeros(16, dtype=torch.int64, device="cuda")


def forward_backward():
    for p in model.parameters():
        p.grad = None
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()

for step in range(6):
    x.copy_(torch.randn(16, 32))
    y.copy_(torch.randint(0, 8, (16,)))
    graph.replay()
    optimizer.step()
    print(step, loss.item())
