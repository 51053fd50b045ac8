"""Mixup draws its coefficient with numpy in the captured step."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images = torch.randn(8, 8, device="cuda")
labels = torch.randint(4, (8,), device="cuda")


def mixup(x, alpha=0.4):
    lam = np.random.beta(alpha, alpha)  # <- rng-frozen-seed
    order = torch.randperm(x.shape[0], device=x.device)
    return lam * x + (1 - lam) * x[order], order, lam  # <- python-scalar-frozen


def step():
    optimizer.zero_grad(set_to_none=True)
    mixed, order, lam = mixup(images)
    logits = model(mixed)
    first = functional.cross_entropy(logits, labels)
    second = functional.cross_entropy(logits, labels[order])
    loss = lam * first + (1 - lam) * second  # <- python-scalar-frozen
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(4):
    images.normal_()
    graph.replay()
    print(loss.item())
