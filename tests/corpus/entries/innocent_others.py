"""Innocent ones that look like the guilty ones of guilty_others.py."""

import contextvars
import logging
import os
import random
import threading
import time
import uuid
from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LOG = logging.getLogger("y")
STATS = {"tokens": 0, "calls": 0}
CTX = contextvars.ContextVar("ctx", default=None)


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# a count that only decides about log lines
class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.n = 0

    def forward(self, x):
        self.n += 1
        STATS["tokens"] += x.numel()
        if self.n % 2 == 0:
            LOG.info("call %d, %d tokens", self.n, STATS["tokens"])
        return torch.relu(self.lin(x))


def logged(device):
    torch.manual_seed(0)
    return Logged().to(device), (torch.randn(8, 4, device=device),)


# a first call that builds, decided by a count
class FirstCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        if self.calls == 0:
            self.bias = torch.linspace(0, 1, 4, device=x.device)
        self.calls += 1
        return self.lin(x) + self.bias


def first_call(device):
    torch.manual_seed(0)
    return FirstCall().to(device), (torch.randn(8, 4, device=device),)


# log sampled at random, run id
def sampled_log(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)

    def run(x):
        if random.random() < 0.5:
            LOG.info("run %s pid %d", uuid.uuid4(), os.getpid())
        return lin(x)

    return run, (torch.randn(8, 4, device=device),)


# heartbeat
class Heartbeat(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.last = 0.0

    def forward(self, x):
        now = time.monotonic()
        if now - self.last > 0.0001:
            LOG.info("alive")
            self.last = now
        return self.lin(x)


def heartbeat(device):
    torch.manual_seed(0)
    return Heartbeat().to(device), (torch.randn(8, 4, device=device),)


# a stack of skips within a forward
class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(16, 8) for _ in range(3))
        self.stack = []

    def forward(self, x):
        for m in self.down:
            x = functional.silu(m(x))
            self.stack.append(x)
        for m in self.up:
            x = m(torch.cat([x, self.stack.pop()], -1))
        return x


def skips(device):
    torch.manual_seed(0)
    return Skips().to(device), (torch.randn(4, 8, device=device),)


# LRU of masks by shape
class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.lru = OrderedDict()

    def mask(self, n, device):
        try:
            self.lru.move_to_end(n)
        except KeyError:
            self.lru[n] = torch.ones(n, n, device=device).tril()
            if len(self.lru) > 4:
                self.lru.popitem(last=False)
        return self.lru[n]

    def forward(self, x):
        y = self.mask(x.shape[0], x.device) @ self.lin(x)
        return self.mask(4, x.device) @ y[:4]


def masks(device):
    torch.manual_seed(0)
    return Masks().to(device), (torch.randn(6, 8, device=device),)


# constants computed on the CPU in each call
def cpu_constants(device):
    torch.manual_seed(0)

    def run(x):
        taps = torch.hann_window(5).tolist()
        gain = torch.tensor(0.5)
        y = sum(w * x.roll(i, 0) for i, w in enumerate(taps))
        return y * gain + float(np.log(2.0))

    return run, (torch.randn(8, 4, device=device),)


# device queries that do not wait
def queries(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)
    peak = []

    def run(x):
        peak.append(torch.cuda.memory_allocated())
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 5:
            with torch.profiler.record_function("fast"):
                return lin(x)
        return lin(x) * 1.0

    return run, (torch.randn(8, 4, device=device),)


# context variables, locks, generators made anew
LOCK = threading.Lock()


def context(device):
    net = mlp(device)

    def layers():
        yield from net

    def run(x):
        token = CTX.set({"mask": x > 0})
        try:
            with LOCK:
                for m in layers():
                    x = m(x)
                return x * CTX.get()["mask"]
        finally:
            CTX.reset(token)

    return run, (torch.randn(4, 16, device=device),)


# attributes set to what they were
class Same(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.scale = None
        self.cfg = {"s": "0.25"}

    def forward(self, x):
        self.scale = float(self.cfg["s"])
        self.shape = tuple(x.shape)
        self.last_input = x
        return self.lin(x) * self.scale


def same(device):
    torch.manual_seed(0)
    return Same().to(device), (torch.randn(8, 4, device=device),)


# in-place EMA by .data
def data_ema(device):
    net, ema = mlp(device), mlp(device)
    x = torch.randn(8, 16, device=device)

    def step():
        net.zero_grad()
        loss = functional.mse_loss(net(x), ema(x).detach())
        loss.backward()
        for p, e in zip(net.parameters(), ema.parameters(), strict=False):
            p.data.add_(p.grad, alpha=-0.1)
            e.data.mul_(0.9).add_(p.data, alpha=0.1)
        return loss

    return step


# last output kept as an attribute for the program to read after the replay
class Aux(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.aux_loss = None

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        self.aux_loss = p.mean(0).square().sum()
        return p


def aux(device):
    m = Aux().to(device)
    x = torch.randn(8, 4, device=device)

    def step():
        m.zero_grad()
        loss = m(x).log().mean() + 0.01 * m.aux_loss
        loss.backward()
        return loss

    return step
