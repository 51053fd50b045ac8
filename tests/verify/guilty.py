"""Entry points whose replays part from eager. The line to blame carries the code."""

import itertools
import random
import time

import numpy as np
import torch
from torch import nn

calls = 0


def schedule(device):
    temperatures = itertools.cycle((1.0, 0.5, 0.25))

    def sample(logits):
        return torch.softmax(logits / next(temperatures), -1)  # <- python-scalar-frozen

    return sample, (torch.randn(4, 8, device=device),)


class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x / (1 - 0.9**self.calls)  # <- cpu-state-step-counter


def counter(device):
    return Average().to(device), (torch.ones(4, device=device),)


def global_counter(device):
    def scale(x):
        global calls
        calls += 1
        return x * calls  # <- cpu-state-step-counter

    return scale, (torch.ones(4, device=device),)


def every_third(device):
    state = {"step": 0}

    def step(x):
        state["step"] += 1
        return x + 100 if state["step"] % 3 == 0 else x + 1  # <- control-flow-frozen

    return step, (torch.zeros(4, device=device),)


def python_random(device):
    def noisy(x):
        seed = random.getrandbits(16)
        return x + seed  # <- rng-frozen-seed

    return noisy, (torch.zeros(4, device=device),)


def numpy_random(device):
    def noisy(x):
        return x * float(np.random.rand())  # <- rng-frozen-seed

    return noisy, (torch.ones(4, device=device),)


def clock(device):
    def stamp(x):
        return x * (time.perf_counter_ns() % 1000)  # <- python-scalar-frozen

    return stamp, (torch.ones(4, device=device),)


def host_tensors(device):
    history = torch.zeros(8)

    def normalize(x):
        scale = 1 + history.mul_(0.9).add_(0.1).mean().item()
        return x * scale  # <- cpu-work-in-region

    return normalize, (torch.randn(8, device=device),)


def host_argument(device):
    def scale(x, by):
        return x * by  # <- cpu-scalar-tensor-operand

    return scale, (torch.randn(4, device=device), torch.tensor(2.0))


class Recurrent(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.cell = nn.Linear(4, 4)
        self.hidden = torch.zeros(2, 4, device=device)

    def forward(self, x):
        hidden = torch.tanh(self.cell(x) + self.hidden)  # <- metadata-address-changed
        self.hidden = hidden.detach()
        return hidden


def rebound_state(device):
    return Recurrent(device).to(device), (torch.randn(2, 4, device=device),)


def outputs_kept_in_a_list(device):
    kept = [torch.zeros(2, device=device), torch.zeros(2, device=device)]

    def add(x):
        kept.append(x * 2)
        kept.pop(0)
        return kept[-1] + kept[-2]  # <- metadata-address-changed

    return add, (torch.ones(2, device=device),)


def rebound_data(device):
    net = nn.Linear(4, 4).to(device)

    def decay(x):
        net.weight.data = net.weight.data * 0.9  # <- metadata-address-changed
        return net(x)

    return decay, (torch.ones(2, 4, device=device),)


def scheduler_in_the_step(device):
    net = nn.Linear(4, 1).to(device)
    x = torch.randn(8, 4, device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, capturable=True)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()  # <- lr-frozen-despite-capturable
        decay.step()
        return loss

    return step


def counts_its_steps_on_the_host(device):
    net = nn.Linear(4, 1).to(device)
    x = torch.randn(8, 4, device=device)
    optimizer = torch.optim.Adagrad(net.parameters())

    def step():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()  # <- optimizer-without-capture-guard
        return loss

    return step


def empty_scratch(device):
    groups = torch.arange(64, device=device) % 4

    def totals(x):
        sums = torch.empty(4, device=x.device)  # <- stale-accumulator-or-uninitialized
        sums.index_add_(0, groups, x)
        return sums

    return totals, (torch.ones(64, device=device),)


def branch_on_capturing(device):
    def scale(x):
        y = x * 2
        if torch.cuda.is_current_stream_capturing():  # <- code-branches-on-capturing
            y = y + 100
        return y

    return scale, (torch.ones(4, device=device),)


def number_on_capturing(device):
    def scale(x):
        capturing = torch.cuda.is_current_stream_capturing()  # <- code-branches-on-capturing
        return x * (2.0 if capturing else 1.0)

    return scale, (torch.ones(4, device=device),)


def tensor_on_capturing(device):
    first, second = torch.zeros(4, device=device), torch.ones(4, device=device)

    def shift(x):
        capturing = torch.cuda.is_current_stream_capturing()  # <- code-branches-on-capturing
        return x + (first if capturing else second)

    return shift, (torch.ones(4, device=device),)


def autocast_outside(device):
    torch.autocast("cuda", dtype=torch.bfloat16).__enter__()
    net = nn.Linear(4, 4).to(device)

    def run(x):
        return net(x)  # <- autocast-weight-cache

    return run, (torch.randn(2, 4, device=device),)


def noise_under_fork_rng(device):
    def noisy(x):
        with torch.random.fork_rng(devices=[0]):  # <- rng-state-set-in-capture
            return x + torch.randn_like(x)

    return noisy, (torch.randn(4, 8, device=device),)


class Growing(nn.Module):
    """It soon stays as it is, unless each run sets it back."""

    strength = 0.0

    def forward(self, x):
        Growing.strength = min(1.0, Growing.strength + 0.1)
        return x * Growing.strength  # <- cpu-state-step-counter


def attribute_of_a_class(device):
    return Growing(), (torch.randn(2, 4, device=device),)


def batches_of_an_iterator(device):
    batches = itertools.cycle([torch.randn(4, device=device) for _ in range(3)])
    x = torch.zeros(4, device=device)

    def step():
        x.copy_(next(batches))  # <- metadata-address-changed
        return x * 2

    return step


def skips_a_layer_hardly_ever(device):
    layers = torch.nn.Linear(4, 4).to(device), torch.nn.Linear(4, 4).to(device)

    def forward(x):
        if random.random() < 0.001:  # <- rng-frozen-seed
            return layers[1](x)
        return layers[1](layers[0](x))

    return forward, (torch.ones(2, 4, device=device),)


def scheduler_fills_a_tensor(device):
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    rate = torch.tensor(0.1, device=device)
    optimizer = torch.optim.AdamW([weight], lr=rate, capturable=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 100)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = weight.square().sum()
        loss.backward()
        optimizer.step()
        scheduler.step()  # <- cpu-state-step-counter
        return loss

    return step


def reads_what_another_stream_writes(device):
    side = torch.cuda.Stream()
    weight = torch.randn(5, 5, device=device)

    def forward(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x @ weight
        z = y * 2  # <- stream-race-in-capture
        torch.cuda.current_stream().wait_stream(side)
        return z

    return forward, (torch.randn(4, 5, device=device),)
