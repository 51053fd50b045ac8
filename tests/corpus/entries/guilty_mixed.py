"""More guilty ones: state in unusual places, library calls that wait."""

import functools
import itertools
import math
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def mlp(device, d=16, out=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(d, 32), nn.SiLU(), nn.Linear(32, out)).to(device)


# replay buffer with a module global pointer
PTR = 0


def replay_buffer(device):
    torch.manual_seed(0)
    buf = torch.zeros(64, 4, device=device)
    obs = torch.randn(8, 4, device=device)

    def store():
        global PTR
        buf[PTR : PTR + 8].copy_(obs)  # guilty: see above
        PTR = (PTR + 8) % 64  # guilty: here too
        return buf.mean(0)

    return store


# thread local
TLS = threading.local()
TLS.step = 0


def thread_local(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)

    def run(x):
        TLS.step += 1  # guilty: here too
        return lin(x) * math.sin(TLS.step)  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# class attribute
class Scaled(nn.Module):
    seen = 0

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        type(self).seen += 1  # guilty: here too
        return self.lin(x) / math.sqrt(type(self).seen)  # guilty: see above


def class_attribute(device):
    torch.manual_seed(0)
    return Scaled().to(device), (torch.randn(8, 4, device=device),)


# numpy counter
def numpy_counter(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)
    n = np.zeros(1)

    def run(x):
        n[0] += 1  # guilty: here too
        return lin(x) * float(1 / (1 + n[0]))  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# 0-dim CPU tensor as a counter
class CpuCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.t = torch.zeros(())

    def forward(self, x):
        self.t += 1  # guilty: here too
        return self.lin(x) * (0.9**self.t)  # guilty: see above


def cpu_counter(device):
    torch.manual_seed(0)
    return CpuCounter().to(device), (torch.randn(8, 4, device=device),)


# itertools.count
def count_iterator(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)
    clock = itertools.count(1)

    def run(x):
        return lin(x) + next(clock) * 0.01  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# wall clock annealing
def wall_clock(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)
    start = time.time()

    def run(x):
        elapsed = time.time() - start  # guilty: here too
        return lin(x) / (1 + elapsed)  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# length of a host list
def list_length(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)
    history = []

    def run(x):
        history.append(x.shape[0])  # guilty: here too
        return lin(x) / len(history)  # guilty: see above

    return run, (torch.randn(8, 4, device=device),)


# SWA: the average divides by a count
def swa(device):
    net = mlp(device)
    avg = torch.optim.swa_utils.AveragedModel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        avg.update_parameters(net)  # guilty: see above
        return loss

    return step


# BatchNorm with a cumulative average reads its count
class Bn(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4, momentum=None)

    def forward(self, x):
        return self.bn(x)  # guilty: see above


def cumulative_bn(device):
    return Bn().to(device), (torch.randn(8, 4, device=device),)


# one_hot without num_classes
def one_hot(device):
    torch.manual_seed(0)

    def run(y):
        return functional.one_hot(y).float().mean(0)  # guilty: see above

    return run, (torch.randint(5, (16,), device=device),)


# bincount with minlength still waits for the maximum
def bincount(device):
    torch.manual_seed(0)

    def run(y):
        return torch.bincount(y, minlength=8).float() / y.numel()  # guilty: see above

    return run, (torch.randint(5, (16,), device=device),)


# channels shuffled by a Python list
def list_index(device):
    torch.manual_seed(0)

    def run(x):
        return x[:, [2, 0, 1]] * 2  # guilty: see above

    return run, (torch.randn(4, 3, 8, device=device),)


# masked assignment from a tensor
def masked_assign(device):
    torch.manual_seed(0)

    def run(x, y):
        out = x.clone()
        m = x > 0
        out[m] = y[m]  # guilty: see above
        return out

    return run, (torch.randn(4, 8, device=device), torch.randn(4, 8, device=device))


# distribution that validates its arguments
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Linear(4, 2)

    def forward(self, x):
        d = torch.distributions.Normal(
            self.mu(x), torch.ones(2, device=x.device)
        )  # guilty: see above
        return d.rsample()


def policy(device):
    torch.manual_seed(0)
    return Policy().to(device), (torch.randn(8, 4, device=device),)


# encoder with a padding mask in eval: nested tensors
def encoder(device):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).to(device).eval().requires_grad_(False)
    pad = torch.arange(6, device=device)[None] >= torch.tensor([6, 4, 3], device=device)[:, None]

    def run(x):
        return net(x, src_key_padding_mask=pad)  # guilty: see above

    return run, (torch.randn(3, 6, 16, device=device),)


# plateau scheduler reads the loss
def plateau(device):
    net = mlp(device)
    opt = torch.optim.AdamW(net.parameters(), lr=torch.tensor(1e-3, device=device), capturable=True)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        sched.step(loss)  # guilty: see above
        return loss

    return step


# anomaly mode looks for NaN in every backward
def anomaly(device):
    net = mlp(device)
    x = torch.randn(8, 16, device=device)

    def step():
        net.zero_grad()
        with torch.autograd.detect_anomaly(check_nan=True):  # guilty: here too
            loss = net(x).square().mean()
            loss.backward()  # guilty: see above
        return loss

    return step


# fused Adam without capturable
def fused_adam(device):
    net = mlp(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)  # guilty: here too
    x = torch.randn(8, 16, device=device)

    def step():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()  # guilty: see above
        return loss

    return step


# pinned result per call, kept in a list
def pinned_results(device):
    torch.manual_seed(0)
    lin = nn.Linear(4, 4).to(device).requires_grad_(False)
    results = []

    def run(x):
        y = lin(x)
        host = torch.empty(y.shape, pin_memory=True)  # guilty: here too
        host.copy_(y, non_blocking=True)  # guilty: here too
        results.append(host)  # guilty: see above
        return y

    return run, (torch.randn(8, 4, device=device),)


# sparse adjacency coalesced in the step
def sparse(device):
    torch.manual_seed(0)
    idx = torch.randint(5, (2, 12), device=device)
    val = torch.rand(12, device=device)

    def run(x):
        a = torch.sparse_coo_tensor(idx, val, (5, 5)).coalesce()  # guilty: see above
        return torch.sparse.mm(a, x)  # guilty: here too

    return run, (torch.randn(5, 8, device=device),)


# own generator, which cgtool registers: innocent
def own_generator(device):
    torch.manual_seed(0)
    gen = torch.Generator(device)
    gen.manual_seed(7)

    def run(x):
        return x + torch.randn(x.shape, generator=gen, device=x.device)

    return run, (torch.randn(8, 4, device=device),)


# momentum teacher: parameters rebound by setattr
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(4, 4)
        self.teacher = {k: v.detach().clone() for k, v in self.student.named_parameters()}

    def forward(self, x):
        with torch.no_grad():
            self.teacher = {
                k: 0.9 * self.teacher[k] + 0.1 * v for k, v in self.student.named_parameters()
            }  # guilty: see above
            t = torch.func.functional_call(self.student, self.teacher, (x,))  # guilty: here too
        return functional.mse_loss(self.student(x), t)


def teacher(device):
    torch.manual_seed(0)
    m = Teacher().to(device)
    m.teacher = {k: torch.zeros_like(v) for k, v in m.student.named_parameters()}
    return m, (torch.randn(8, 4, device=device),)


# lru_cache on a Python step
@functools.cache
def alpha_bar(t):
    return math.cos(t / 100) ** 2


class Diffuser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.t = 50

    def forward(self, x):
        a = alpha_bar(self.t)
        self.t -= 1  # guilty: here too
        return a * x + (1 - a) * self.lin(x)  # guilty: see above


def diffuser(device):
    torch.manual_seed(0)
    return Diffuser().to(device).requires_grad_(False), (torch.randn(8, 4, device=device),)


# gradient penalty every 16 steps (lazy regularization, StyleGAN)
def lazy_reg(device):
    d = mlp(device, out=1)
    x = torch.randn(8, 16, device=device)
    state = {"it": 0}

    def step():
        d.zero_grad(set_to_none=True)
        real = x.clone().requires_grad_()
        out = d(real)
        loss = functional.softplus(-out).mean()
        if state["it"] % 16 == 0:  # guilty: see above
            (g,) = torch.autograd.grad(out.sum(), real, create_graph=True)  # guilty: here too
            loss = loss + g.square().sum(1).mean()  # guilty: here too
        loss.backward()
        state["it"] += 1  # guilty: here too
        return loss

    return step


# freeze the backbone for the first 10 steps
def unfreeze(device):
    net = mlp(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(8, 16, device=device)
    n = 0

    def step():
        nonlocal n
        n += 1  # guilty: here too
        if n == 10:  # guilty: see above
            net[0].requires_grad_(True)
        elif n < 10:
            net[0].requires_grad_(False)
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step
