"""Training steps with one mistake each."""

import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def _net(device):
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 2)).to(device)


def unfused_scaler_step(device):
    net = _net(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        scaler.scale(net(x).square().mean()).backward()
        scaler.step(optimizer)  # guilty: asks whether a gradient was infinite
        scaler.update()

    return step


def clipping_that_raises(device):
    net = _net(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)  # guilty: asks
        optimizer.step()

    return step


class WarmEma:
    def __init__(self, net):
        self.count = 0
        self.shadow = [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def update(self, net):
        self.count += 1  # guilty: counts on the host
        decay = min(0.999, (1 + self.count) / (10 + self.count))  # guilty: a number of the host
        torch._foreach_lerp_(self.shadow, list(net.parameters()), 1 - decay)


def ema_with_warmup(device):
    net = _net(device)
    optimizer, ema = torch.optim.SGD(net.parameters(), lr=0.01), WarmEma(net)
    x = torch.randn(4, 8, device=device)

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        ema.update(net)

    return step


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if grad.norm() > ctx.limit:  # guilty: branches on a norm in backward
            grad = grad / grad.norm()
        return grad, None


def gradient_guard(device):
    net = _net(device)

    def forward(x):
        return Clamp.apply(net(x), 0.5).sum()

    return forward, (torch.randn(4, 8, device=device),)


def norms_are_logged_by_a_hook(device):
    net, log = _net(device), []

    def note(parameter):
        log.append(float(parameter.grad.norm()))  # guilty: read in backward
        del log[:-4]

    net[0].weight.register_post_accumulate_grad_hook(note)
    x = torch.randn(4, 8, device=device)

    def step():
        net.zero_grad()
        net(x).square().mean().backward()

    return step


def foreach_cosine_rate(device):
    net = _net(device)
    x = torch.randn(4, 8, device=device)
    progress = iter(range(10**9))

    def step():
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        rate = 0.1 * (1 + math.cos(next(progress) / 50))  # guilty: a rate of the host
        with torch.no_grad():
            parameters = list(net.parameters())
            grads = [p.grad for p in parameters]
            torch._foreach_add_(parameters, grads, alpha=-rate)  # guilty: the rate of the capture
        return loss

    return step


def mixup_drawn_by_numpy(device):
    net = _net(device)
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 2, device=device)

    def step():
        net.zero_grad()
        share = float(np.random.beta(0.4, 0.4))  # guilty: drawn on the host
        mixed = share * x + (1 - share) * x.flip(0)
        loss = functional.mse_loss(net(mixed), share * y + (1 - share) * y.flip(0))
        loss.backward()
        return loss

    return step


def ignored_labels_are_dropped(device):
    net = _net(device)
    x = torch.randn(4, 8, device=device)
    labels = torch.tensor([0, -100, 1, 0], device=device)

    def step():
        net.zero_grad()
        keep = labels.ne(-100)
        loss = net(x)[keep].logsumexp(-1).sum()  # guilty: the mask is counted
        loss.backward()
        return loss

    return step


def target_network_by_a_coin(device):
    net, target = _net(device), _net(device)
    x = torch.randn(4, 8, device=device)

    def step():
        net.zero_grad()
        first, second = (net, target) if random.random() < 0.5 else (target, net)  # guilty: coin
        loss = (first(x) - 0.9 * second(x).detach()).square().mean()
        loss.backward()
        return loss.detach()

    return step


def event_is_waited_for(device):
    net = _net(device)
    x = torch.randn(4, 8, device=device)
    done = torch.cuda.Event()

    def step():
        net.zero_grad()
        loss = net(x).mean()
        loss.backward()
        done.record()
        done.synchronize()  # guilty: the host waits
        return loss

    return step
