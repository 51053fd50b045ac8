"""A pipeline stage has two micro-batches in flight, each with graphs of its own."""

import torch
from torch import nn


class Slot:
    """Forward and backward of one micro-batch."""

    def __init__(self, stage, rows, width):
        self.stage = stage
        self.x = torch.zeros(rows, width, device="cuda", requires_grad=True)
        self.grad_out = torch.zeros(rows, width, device="cuda")
        self.pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                torch.autograd.grad(stage(self.x), self.wanted(), self.grad_out)
        torch.cuda.current_stream().wait_stream(stream)
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward_graph, pool=self.pool):
            self.out = stage(self.x)
        with torch.cuda.graph(self.backward_graph, pool=self.pool):
            self.grads = torch.autograd.grad(self.out, self.wanted(), self.grad_out)

    def wanted(self):
        return (self.x, *self.stage.parameters())

    def forward(self, x):
        with torch.no_grad():
            self.x.copy_(x)
        self.forward_graph.replay()
        return self.out.detach()

    def backward(self, grad_out):
        self.grad_out.copy_(grad_out)
        self.backward_graph.replay()
        return self.grads


stage = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).cuda()
slots = [Slot(stage, 4, 8) for _ in range(2)]
totals = [torch.zeros_like(each) for each in stage.parameters()]
for _ in range(3):
    batch = torch.randn(2, 4, 8)
    outputs = [slot.forward(part) for slot, part in zip(slots, batch, strict=True)]
    for slot, out in zip(slots, outputs, strict=True):
        _, *grads = slot.backward(2 * out)
        torch._foreach_add_(totals, list(grads))
    with torch.no_grad():
        torch._foreach_add_(list(stage.parameters()), totals, alpha=-0.01)
        torch._foreach_zero_(totals)
    print(sum(out.square().mean().item() for out in outputs))
