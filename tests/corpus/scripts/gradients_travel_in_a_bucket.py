"""Gradients of a captured backward are packed, as for an all-reduce, and copied back."""

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.zeros(32, 8, device="cuda"), torch.zeros(32, 1, device="cuda")


def forward_backward():
    loss = nn.functional.smooth_l1_loss(model(x), y)
    loss.backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
        optimizer.zero_grad(set_to_none=True)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()

gradients = [p.grad for p in model.parameters()]
for _ in range(4):
    x.normal_()
    y.copy_(x.mean(1, keepdim=True))
    graph.replay()
    bucket = _flatten_dense_tensors(gradients)
    bucket /= 2  # world size
    for gradient, piece in zip(gradients, _unflatten_dense_tensors(bucket, gradients), strict=True):
        gradient.copy_(piece)
    optimizer.step()
print(loss.item())
