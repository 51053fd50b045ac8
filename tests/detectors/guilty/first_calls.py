"""What captured code makes at its first call, each in its own way; nothing ran it before."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not

x = torch.zeros(4, device="cuda")


class Base:
    mean = None

    def __call__(self, x):
        return x - self.update(x.mean())


class ByNone(Base):
    def update(self, mean):
        if self.mean is None:
            self.mean = mean.clone()  # <- control-flow-frozen
        else:
            self.mean.lerp_(mean, 0.1)
        return self.mean


class ByReturn(Base):
    def update(self, mean):
        if self.mean is not None:
            return self.mean
        self.mean = mean.clone()  # <- control-flow-frozen
        return self.mean


class ByFlag(Base):
    is_known = False

    def update(self, mean):
        if not self.is_known:
            self.mean = mean.clone()  # <- control-flow-frozen
            self.is_known = True
        else:
            self.mean.lerp_(mean, 0.1)
        return self.mean


class ByAttribute(Base):
    def update(self, mean):
        if not hasattr(self, "kept"):
            self.kept = mean.clone()  # <- control-flow-frozen
        else:
            self.kept.lerp_(mean, 0.1)
        return self.kept


class ByException(Base):
    def update(self, mean):
        try:
            return self.kept.lerp_(mean, 0.1)
        except AttributeError:
            self.kept = mean.clone()  # <- control-flow-frozen
            return self.kept


class ByKey(Base):
    def __init__(self):
        self.state = {}

    def update(self, mean):
        if "mean" not in self.state:
            self.state["mean"] = mean.clone()  # <- control-flow-frozen
        return self.state["mean"]


class ByExpression(Base):
    def update(self, mean):
        old = self.mean
        self.mean = mean if self.mean is None else old.lerp(mean, 0.1)  # <- control-flow-frozen
        return self.mean


class Sum(Base):
    def update(self, mean):
        if self.mean is None:
            self.mean = torch.zeros((), device="cuda")  # <- control-flow-frozen
        self.mean += mean
        return self.mean


class Noise(Base):
    def update(self, mean):
        if self.mean is None:
            self.mean = torch.randn((), device="cuda")  # <- control-flow-frozen
        return mean + self.mean


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(4, 4), None

    def forward(self, x):
        self.hidden = self.cell(x[None], self.hidden)  # <- control-flow-frozen
        return self.hidden


def closure():
    mean = None

    def update(x):
        nonlocal mean
        if mean is None:
            mean = x.mean()  # <- control-flow-frozen
        else:
            mean.lerp_(x.mean(), 0.1)
        return x - mean

    return update


kinds = [ByNone, ByReturn, ByFlag, ByAttribute, ByException, ByKey, ByExpression, Sum, Noise]
functions = [*(kind() for kind in kinds), Recurrent().cuda().requires_grad_(False), closure()]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outputs = [function(x) for function in functions]
for number in range(3):
    x.fill_(number)
    graph.replay()
print([output.sum().item() for output in outputs])
