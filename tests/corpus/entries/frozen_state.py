"""Host values that a captured function reads: some change, some never do."""

import itertools
import os
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional


def warmup_by_step_count(device):
    model = nn.Linear(8, 8, device=device)
    state = {"step": 0}

    def forward(x):
        state["step"] += 1  # guilty: it changes on the host
        return model(x) * min(1.0, state["step"] / 100)  # guilty: the factor is frozen

    return forward, (torch.randn(4, 8, device=device),)


def decays_every_thousand_steps(device):
    model = nn.Linear(8, 8, device=device)
    state = {"step": 0}

    def forward(x):
        state["step"] += 1  # guilty: it changes on the host
        temperature = 0.9 ** (state["step"] // 1000)
        return (model(x) / temperature).softmax(-1)  # guilty: the temperature is frozen

    return forward, (torch.randn(4, 8, device=device),)


class KLAnnealing(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(16, 8)
        self.decoder = nn.Linear(4, 16)
        self.beta = itertools.count()

    def forward(self, x):
        mean, logvar = self.encoder(x).chunk(2, -1)
        out = self.decoder(mean)
        kl = (mean.square() + logvar.exp() - logvar - 1).sum(-1).mean()
        beta = min(next(self.beta) / 5000, 1.0)  # guilty: it changes on the host
        return functional.mse_loss(out, x) + beta * kl  # guilty: beta comes from an iterator


def vae_with_annealing(device):
    return KLAnnealing().to(device), (torch.randn(4, 16, device=device),)


def vae_with_fixed_beta(device):
    class VAE(nn.Module):
        beta = 0.25

        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(16, 8)
            self.decoder = nn.Linear(4, 16)

        def forward(self, x):
            mean, logvar = self.encoder(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
            kl = (mean.square() + logvar.exp() - logvar - 1).sum(-1).mean()
            return functional.mse_loss(self.decoder(z), x) + self.beta * kl

    return VAE().to(device), (torch.randn(4, 16, device=device),)


@dataclass
class Schedule:
    start: float = 1.0
    end: float = 0.1
    steps: int = 0

    def value(self):
        self.steps += 1  # guilty: it changes on the host
        return self.start + (self.end - self.start) * min(self.steps / 50, 1)


def teacher_forcing_ratio(device):
    cell = nn.GRUCell(8, 8).to(device)
    schedule = Schedule()

    def decode(target):
        ratio = schedule.value()  # guilty: it changes on the host
        hidden = torch.zeros(4, 8, device=device)
        out = hidden
        for t in range(target.shape[1]):
            hidden = cell(ratio * target[:, t] + (1 - ratio) * out, hidden)  # guilty: ratio changes
            out = hidden
        return out

    return decode, (torch.randn(4, 5, 8, device=device),)


def teacher_forcing_on_device(device):
    cell = nn.GRUCell(8, 8).to(device)
    steps = torch.zeros((), device=device)

    def decode(target):
        steps.add_(1)
        ratio = 1 - 0.9 * (steps / 50).clamp(max=1)
        hidden = torch.zeros(4, 8, device=device)
        out = hidden
        for t in range(target.shape[1]):
            hidden = cell(ratio * target[:, t] + (1 - ratio) * out, hidden)
            out = hidden
        return out

    return decode, (torch.randn(4, 5, 8, device=device),)


def alternates_two_heads(device):
    heads = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)]).to(device)
    turn = itertools.cycle([0, 1])

    def forward(x):
        return heads[next(turn)](x)  # guilty: every replay runs the head of the capture

    return forward, (torch.randn(4, 8, device=device),)


def curriculum_of_lengths(device):
    model = nn.Linear(8, 1, device=device)
    lengths = deque([4, 8, 16])

    def loss(x):
        lengths.rotate(-1)  # guilty: it changes on the host
        return model(x[:, : lengths[0]]).square().mean()  # guilty: the length rotates on the host

    return loss, (torch.randn(4, 16, 8, device=device),)


def reads_a_setting_from_the_environment(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        y = model(x)
        if os.environ.get("MY_MODEL_ACTIVATION", "gelu") == "relu":
            return y.relu()
        return functional.gelu(y)

    return forward, (torch.randn(4, 8, device=device),)


@dataclass
class Config:
    scale: float = 0.125
    layers: tuple = (8, 16, 8)
    extra: dict = field(default_factory=lambda: {"bias": True})


def configured_by_a_dataclass(device):
    config = Config()
    pairs = itertools.pairwise(config.layers)
    layers = [nn.Linear(a, b, bias=config.extra["bias"], device=device) for a, b in pairs]

    def forward(x):
        for layer in layers:
            x = layer(x).relu() * config.scale
        return x

    return forward, (torch.randn(4, 8, device=device),)


def running_mean_in_python(device):
    model = nn.Linear(8, 1, device=device)
    history = []

    def forward(x):
        y = model(x)
        history.append(y.detach().mean())  # guilty: it changes on the host
        return y - torch.stack(history[-4:]).mean()  # guilty: the list grows only while capturing

    return forward, (torch.randn(4, 8, device=device),)


def running_mean_in_a_ring(device):
    model = nn.Linear(8, 1, device=device)
    history = torch.zeros(4, device=device)

    def forward(x):
        y = model(x)
        history.copy_(history.roll(1))
        history[0].copy_(y.detach().mean())
        return y - history.mean()

    return forward, (torch.randn(4, 8, device=device),)


def memoised_positions(device):
    cache = {}

    def positions(length):
        if length not in cache:
            cache[length] = torch.arange(length, device=device).float()[:, None] / length
        return cache[length]

    def forward(x):
        return x + positions(x.shape[1])

    return forward, (torch.randn(2, 6, 8, device=device),)


def epoch_from_a_global(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        global EPOCH
        EPOCH += 1  # guilty: it changes on the host
        return model(x) * (0.5 if EPOCH % 2 else 1.0)  # guilty: a global that changes

    return forward, (torch.randn(4, 8, device=device),)


EPOCH = 0


def every_other_call_skips_a_block(device):
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)
    calls = [0]

    def forward(x):
        calls[0] += 1  # guilty: it changes on the host
        for i, block in enumerate(blocks):
            if (calls[0] + i) % 2:  # guilty: the branch is taken as in the capture
                x = x + block(x)
        return x

    return forward, (torch.randn(4, 8, device=device),)


def counts_calls_for_nobody(device):
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.names = ["inner"]

        def forward(self, x):
            for name in self.names:
                x = getattr(self, name)(x)
            return x

    return Counted().to(device), (torch.randn(4, 8, device=device),)


def beam_width_shrinks(device):
    widths = iter([8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4] + [2] * 10_000)

    def search(scores):
        return scores.topk(next(widths)).values  # guilty: the width comes from an iterator

    return search, (torch.randn(4, 32, device=device),)
