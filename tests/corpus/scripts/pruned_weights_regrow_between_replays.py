"""RigL: a loop moves the masks of sparse layers, in the memory that the graph multiplies by."""

import torch
from torch import nn


class SparseLinear(nn.Linear):
    def __init__(self, inputs, outputs, density=0.5):
        super().__init__(inputs, outputs)
        self.register_buffer("mask", (torch.rand_like(self.weight) < density).float())
        self.dense_gradient = None

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.mask, self.bias)

    @torch.no_grad()
    def move(self, count):
        alive = self.weight.abs().masked_fill(self.mask == 0, torch.inf).flatten()
        drop = alive.topk(count, largest=False).indices
        dead = torch.rand_like(self.mask).masked_fill(self.mask == 1, -1.0).flatten()
        grow = dead.topk(count).indices
        self.mask.view(-1)[drop] = 0.0
        self.mask.view(-1)[grow] = 1.0
        self.weight.view(-1)[grow] = 0.0


torch.manual_seed(0)
layers = [SparseLinear(10, 20), SparseLinear(20, 2)]
model = nn.Sequential(layers[0], nn.ReLU(), layers[1]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(32, 10, device="cuda")
y = torch.randint(2, (32,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for i in range(1, 13):
    x.copy_(torch.randn(32, 10))
    y.copy_((x[:, 0] > 0).long())
    graph.replay()
    if i % 4 == 0:
        for layer in layers:
            layer.move(3)
        print(i, loss.item())
