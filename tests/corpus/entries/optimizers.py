"""Optimizers, schedulers, and what surrounds a step."""

import torch
from torch import nn
from torch.nn import functional


def _model(device):
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)


def plain_adam(device):
    model = _model(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # guilty: not capturable
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # guilty: its step count is a host tensor
        return loss

    return step


def capturable_adam(device):
    model = _model(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def momentum_sgd(device):
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def sgd_with_scheduler(device):
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # guilty: a float learning rate
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()  # guilty: the learning rate is a Python number
        return loss

    return step


def tensor_rate_and_scheduler(device):
    model = _model(device)
    rate = torch.tensor(1e-2, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.scheduler = scheduler
    return step


def adamw_with_bias_correction_by_hand(device):
    weight = torch.randn(16, 8, device=device, requires_grad=True)
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    state = {"t": 0}
    x = torch.randn(4, 8, device=device)

    def step():
        state["t"] += 1  # guilty: it changes on the host
        loss = functional.linear(x, weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.001)
            mean = first / (1 - 0.9 ** state["t"])  # guilty: t is counted on the host
            weight.sub_(1e-2 * mean / (second.sqrt() + 1e-8))
        return loss

    return step


def adam_by_hand_with_device_step(device):
    weight = torch.randn(16, 8, device=device, requires_grad=True)
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    t = torch.zeros((), device=device)
    x = torch.randn(4, 8, device=device)

    def step():
        t.add_(1)
        loss = functional.linear(x, weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.001)
            mean = first / (1 - 0.9**t)
            weight.sub_(1e-2 * mean / (second.sqrt() + 1e-8))
        return loss

    return step


def grad_scaler_step(device):
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # guilty: found_inf is read on the host
        scaler.update()
        return loss

    return step


def lbfgs(device):
    model = _model(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(16, 8, device=device)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def step():
        return optimizer.step(closure)  # guilty: LBFGS reads losses on the host

    return step


def weight_decay_groups(device):
    model = _model(device)
    decayed = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    x = torch.randn(16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def freezes_after_a_while(device):
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 8, device=device)
    steps = [0]

    def step():
        steps[0] += 1  # guilty: it changes on the host
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        if steps[0] < 8:  # guilty: later steps must not train, replays do
            optimizer.step()
        return loss

    return step


def accumulates_four_steps(device):
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 8, device=device)
    micro = [0]

    def step():
        (model(x).square().mean() / 4).backward()
        micro[0] += 1  # guilty: it changes on the host
        if micro[0] % 4 == 0:  # guilty: the captured iteration decides for all
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    return step


def accumulates_in_one_graph(device):
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parts = torch.randn(4, 16, 8, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        for part in parts:
            (model(part).square().mean() / 4).backward()
        optimizer.step()

    return step
