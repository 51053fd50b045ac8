"""Branches on draws that a rate decides, and what modules record about themselves."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class _Encoder(nn.Module):
    def __init__(self, layerdrop):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.layerdrop = layerdrop

    def forward(self, x):
        for layer in self.layers:
            skip = False
            if self.training:
                dropout_probability = torch.rand([])
                if dropout_probability < self.layerdrop:
                    skip = True
            if not skip:
                x = functional.relu(layer(x))
        return x


def layerdrop_of_zero(device):
    return _Encoder(0.0).to(device).train(), (torch.randn(4, 8, device=device),)


class _NumpyEncoder(nn.Module):
    def __init__(self, layerdrop):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.layerdrop = layerdrop

    def forward(self, x):
        for layer in self.layers:
            probability = np.random.uniform(0, 1)
            if not self.training or (probability > self.layerdrop):
                x = functional.relu(layer(x))
        return x


def layerdrop_of_zero_by_numpy(device):
    return _NumpyEncoder(0).to(device).train(), (torch.randn(4, 8, device=device),)


class _Invert(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, images):
        if torch.rand(1).item() >= self.p:
            return images
        return 1 - images


def always_inverts(device):
    layers = nn.Sequential(_Invert(1.0), nn.Conv2d(3, 4, 3))
    return layers.to(device), (torch.rand(2, 3, 8, 8, device=device),)


def teacher_is_always_forced(device):
    class Decoder(nn.Module):
        def __init__(self, ratio=1.0):
            super().__init__()
            self.embed, self.cell = nn.Embedding(20, 8), nn.GRUCell(8, 16)
            self.out, self.ratio = nn.Linear(16, 20), ratio

        def forward(self, target, h):
            token, logits = target[:, 0], []
            for step in range(1, target.shape[1]):
                h = self.cell(self.embed(token), h)
                logits.append(self.out(h))
                forced = random.random() < self.ratio
                token = target[:, step] if forced else logits[-1].argmax(-1)
            return torch.stack(logits, 1)

    target = torch.randint(0, 20, (3, 5), device=device)
    return Decoder().to(device), (target, torch.zeros(3, 16, device=device))


class _SomeInverted(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, images):
        if random.random() < self.p:  # guilty: one of two modules has a rate between 0 and 1
            return 1 - images
        return images


def one_of_two_rates(device):
    layers = nn.Sequential(_SomeInverted(0.0), nn.Conv2d(3, 3, 3), _SomeInverted(0.5))
    return layers.to(device), (torch.rand(2, 3, 8, 8, device=device),)


def _stochastic_depth(p, device):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.p = nn.Linear(8, 8), p

        def forward(self, x):
            keep = 1.0 - self.p
            if random.random() > keep:
                return x
            return x + self.layer(x) / keep

    return Block().to(device), (torch.randn(4, 8, device=device),)


def always_kept(device):
    return _stochastic_depth(0.0, device)


def rate_grows_from_zero(device):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rate = nn.Linear(8, 8), 0.0

        def forward(self, x):
            if random.random() >= self.rate:  # guilty: the rate of the capture
                x = x + self.layer(x)
            self.rate = self.rate + 0.1  # guilty: no replay raises it
            return x

    return Encoder().to(device), (torch.randn(4, 8, device=device),)


def centred_draw(device):
    layer = nn.Linear(8, 8, device=device)

    def forward(x):
        noise = random.random()
        noise -= 0.5
        if noise < 0:  # guilty: a coin of the host
            return layer(x)
        return layer(-x)

    return forward, (torch.randn(4, 8, device=device),)


class _Trained(nn.Module):
    """Has a `training_step`, and no `forward`."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(12, 3)
        self.global_step = 0
        self.logged = {}

    def log(self, name, value):
        self.logged[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        self.log("step", self.global_step)
        return loss


def module_counts_its_steps(device):
    module = _Trained().to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batch = torch.randn(16, 12, device=device), torch.randint(0, 3, (16,), device=device)

    def step():
        loss = module.training_step(batch, module.global_step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        module.global_step += 1
        return loss.detach()

    return step


class _Counting(nn.Sequential):
    calls = 0

    def features(self, x):
        self.calls += 1
        return self(x)


def container_counts_its_calls(device):
    net = _Counting(nn.Linear(8, 8), nn.Tanh()).to(device)
    return net.features, (torch.randn(4, 8, device=device),)


class _CumulativeNorm(nn.BatchNorm1d):
    seen = 0

    def forward(self, x):
        self.seen += 1  # guilty: no replay counts
        self.momentum = 1.0 / self.seen  # guilty: the momentum of the capture
        return super().forward(x)  # guilty: the momentum of the capture


def momentum_of_its_own_norm(device):
    net = nn.Sequential(nn.Linear(8, 8), _CumulativeNorm(8)).to(device).train()
    return net, (torch.randn(4, 8, device=device),)


class _Recording(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.history = nn.Linear(8, 8), {}

    def forward(self, x):
        y = self.net(x)
        self.history[len(self.history)] = y.detach()  # guilty: no replay adds an item
        return y


def records_every_output(device):
    return _Recording().to(device), (torch.randn(4, 8, device=device),)


def chooses_from_one_item(device):
    activations, widths = ["relu"], range(8, 9)

    def layer(x):
        name, width = random.choice(activations), random.randint(8, 8)
        if random.choice(widths) == width:
            x = getattr(functional, name)(x)
        return x[:, :width] * random.randrange(2, 3)

    return layer, (torch.randn(4, 16, device=device),)


class _GrowingCache(nn.Module):
    past = None

    def forward(self, x):
        keys = x if self.past is None else torch.cat([self.past, x], 1)  # guilty: grows
        self.past = keys  # guilty: another tensor with every call
        weights = (x @ keys.transpose(1, 2)).softmax(-1)
        return weights.expand(2, *weights.shape[1:]) @ keys


def cache_that_grows(device):
    return _GrowingCache(), (torch.randn(2, 1, 8, device=device),)
