"""Guilty ones with state of optimizers, views and options."""

import os
import random

import numpy as np
import torch
from torch import nn


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# hand-written warm-up of param_groups
def group_lr(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, 16, device=device)
    it = 0

    def step():
        nonlocal it
        it += 1  # guilty: here too
        for g in opt.param_groups:
            g["lr"] = 0.1 * min(1.0, it / 50)  # guilty: see above
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()  # guilty: here too
        return loss

    return step


# a device lr, filled from a Python count
def fill_lr(device):
    net = mlp(device)
    lr = torch.tensor(0.1, device=device)
    opt = torch.optim.Adam(net.parameters(), lr=lr, capturable=True)
    x = torch.randn(8, 16, device=device)
    it = 0

    def step():
        nonlocal it
        it += 1  # guilty: here too
        lr.fill_(0.1 * min(1.0, it / 50))  # guilty: see above
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return step


# bidirectional scan that flips each call
class Flip(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.reverse = False

    def forward(self, x):
        y = x.flip(0) if self.reverse else x  # guilty: see above
        self.reverse = not self.reverse  # guilty: here too
        return self.lin(y).cumsum(0)


def flip(device):
    torch.manual_seed(0)
    return Flip().to(device), (torch.randn(8, 4, device=device),)


# layers rotate
class Rotate(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.order = [0, 1, 2]

    def forward(self, x):
        for i in self.order:
            x = torch.tanh(self.pool[i](x))  # guilty: here too
        self.order = self.order[1:] + self.order[:1]  # guilty: see above
        return x


def rotate(device):
    torch.manual_seed(0)
    return Rotate().to(device), (torch.randn(8, 4, device=device),)


# order shuffled
class Shuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
        self.order = list(range(5))

    def forward(self, x):
        random.shuffle(self.order)  # guilty: see above
        for i in self.order:
            x = torch.tanh(self.pool[i](x))  # guilty: here too
        return x


def shuffle(device):
    torch.manual_seed(0)
    return Shuffle().to(device), (torch.randn(8, 4, device=device),)


# noise from the operating system
def urandom(device):
    torch.manual_seed(0)

    def run(x):
        return x * (os.urandom(1)[0] / 255)  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# negative bank sampled by numpy
def bank(device):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    rows = torch.randn(16, 4, device=device)

    def run(x):
        k = int(rng.integers(16))  # guilty: here too
        return x - rows[k]  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# CPU generator picks a slice
def cpu_randint(device):
    torch.manual_seed(0)
    table = torch.randn(16, 4, device=device)

    def run(x):
        k = torch.randint(0, 12, (1,)).item()  # guilty: here too
        return x[:4] + table[k : k + 4]  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# stochastic depth with the CPU generator
class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, x):
        for layer in self.a:
            keep = torch.bernoulli(torch.tensor(0.5))  # guilty: here too
            x = x + keep * torch.tanh(layer(x))  # guilty: see above
        return x


def depth(device):
    torch.manual_seed(0)
    return Depth().to(device), (torch.randn(8, 4, device=device),)


# loader iterates in the step: pinned batches
def loader(device):
    net = mlp(device)
    batches = [torch.randn(8, 16).pin_memory() for _ in range(6)]
    x = torch.zeros(8, 16, device=device)
    it = iter(batches * 50)

    def step():
        x.copy_(next(it), non_blocking=True)  # guilty: see above
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    return step


# branch on what an async copy left in pinned memory
def pinned_branch(device):
    torch.manual_seed(0)
    flag = torch.zeros((), dtype=torch.bool).pin_memory()
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)
    x = torch.randn(8, 4, device=device)

    def step():
        if flag:  # guilty: see above
            x.mul_(0.5)  # guilty: here too
        y = lin(x)
        x.add_(0.3)
        flag.copy_((x.abs().amax() > 4.0), non_blocking=True)
        return y

    return step


# history of losses as floats, for a plateau rule in Python
def float_history(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)
    best = [float("inf")]

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        best[0] = min(best[0], loss.item())  # guilty: see above
        return loss

    return step
