"""Training in shards, recommenders, graphs of molecules, forecasts and particles."""

from __future__ import annotations

import contextlib
import functools
import math
import random

import torch
from torch import nn
from torch.nn import functional


# Velocities are rescaled to the wanted temperature.
def thermostat_by_the_math_module(device):
    positions = torch.rand(16, 3, device=device)
    velocities = torch.randn(16, 3, device=device)
    target, dt = 0.5, 0.01

    @torch.no_grad()
    def step():
        offsets = positions[:, None] - positions[None]
        distances = offsets.pow(2).sum(-1, keepdim=True) + 0.1
        velocities.add_((offsets / distances.pow(2)).sum(1), alpha=dt)
        kinetic = velocities.pow(2).sum(-1).mean() / 3
        velocities.mul_(math.sqrt(target / kinetic))  # guilty: a number of the host
        positions.add_(velocities, alpha=dt)
        return positions

    return step


# Berendsen's thermostat, which stays on the device, with velocity Verlet.
def thermostat_by_tensors(device):
    positions = torch.rand(16, 3, device=device)
    velocities = torch.randn(16, 3, device=device)
    target, dt, relaxation = 0.5, 0.01, 0.1

    def forces(positions):
        offsets = positions[:, None] - positions[None]
        distances = offsets.pow(2).sum(-1, keepdim=True) + 0.1
        return (offsets / distances.pow(2)).sum(1)

    @torch.no_grad()
    def step():
        velocities.add_(forces(positions), alpha=dt / 2)
        positions.add_(velocities, alpha=dt)
        velocities.add_(forces(positions), alpha=dt / 2)
        kinetic = velocities.pow(2).sum(-1).mean() / 3
        velocities.mul_(torch.sqrt(1 + dt / relaxation * (target / kinetic - 1)))
        return positions

    return step


# Each optimizer step makes the flat parameter of a shard anew, and the weights become its views.
class _Shard:
    def __init__(self, module, rate):
        self.parameters = list(module.parameters())
        self.rate = rate
        self.flat = torch.cat([each.detach().flatten() for each in self.parameters])

    def step(self):
        gradient = torch.cat([each.grad.flatten() for each in self.parameters])
        self.flat = self.flat - self.rate * gradient  # guilty: a new flat parameter
        start = 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            parameter.data = self.flat[start:end].view_as(parameter)  # guilty: a new storage
            start = end


def shard_steps_out_of_place(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    shard = _Shard(model, 0.05)
    x, y = torch.randn(4, 6, device=device), torch.randn(4, 1, device=device)

    def step():
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        shard.step()
        return loss

    return step


class _ShardInPlace:
    def __init__(self, module, rate, ranks):
        self.parameters = list(module.parameters())
        self.rate = rate
        flat = torch.cat([each.detach().flatten() for each in self.parameters])
        self.flat = functional.pad(flat, (0, -len(flat) % ranks))
        self.momentum = [torch.zeros_like(each) for each in self.flat.chunk(ranks)]
        start = 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            parameter.data = self.flat[start:end].view_as(parameter)
            start = end

    @torch.no_grad()
    def step(self):
        gradient = torch.cat([each.grad.flatten() for each in self.parameters])
        gradient = functional.pad(gradient, (0, len(self.flat) - len(gradient)))
        ranks = len(self.momentum)
        shards = zip(self.flat.chunk(ranks), gradient.chunk(ranks), self.momentum, strict=True)
        for weights, grads, momentum in shards:
            momentum.mul_(0.9).add_(grads)
            weights.sub_(momentum, alpha=self.rate)


# All ranks' shards of one flat parameter, one after the other; the weights are its views.
def shards_step_in_place(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    shards = _ShardInPlace(model, 0.05, 4)
    x, y = torch.randn(4, 6, device=device), torch.randn(4, 1, device=device)

    def step():
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        shards.step()
        return loss

    return step


# Hashing of raw item ids into a table, as the data pipeline did it.
def items_hashed_by_python(device):
    table = nn.Embedding(64, 8).to(device)
    tower = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    raw = torch.randint(0, 1_000_000, (6,), device=device)

    def bucket_of(ids):
        rows = [(each * 2654435761) % 64 for each in ids.tolist()]  # guilty: a list of the host
        return torch.tensor(rows).to(ids.device)

    def score():
        return tower(table(bucket_of(raw))).squeeze(-1)

    return score


# Two hashes for each id, combined as in compositional embeddings.
def items_hashed_on_the_device(device):
    quotients, remainders = nn.Embedding(16, 8).to(device), nn.Embedding(8, 8).to(device)
    history = nn.EmbeddingBag(64, 8, mode="sum").to(device)
    tower = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    raw = torch.randint(0, 1_000_000, (3,), device=device)
    past = torch.randint(0, 1_000_000, (10,), device=device)
    offsets = torch.tensor([0, 4, 4]).to(device)

    def score():
        hashed = (raw * 2654435761).bitwise_and(127)
        item = quotients(hashed // 8) * remainders(hashed % 8)
        user = history(past.remainder(64), offsets)
        return tower(torch.cat((item, user), -1)).squeeze(-1)

    return score


# An augmentation of a time series.
def window_is_read_at_a_drawn_stride(device):
    encoder = nn.Conv1d(2, 8, 3, padding=1).to(device)
    head = nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
    series, target = torch.randn(4, 2, 24, device=device), torch.randn(4, 1, device=device)

    def step():
        stride = random.choice((1, 2, 3))  # guilty: drawn once
        optimizer.zero_grad()
        features = encoder(series[..., ::stride]).relu().mean(-1)
        loss = functional.mse_loss(head(features), target)
        loss.backward()
        optimizer.step()
        return loss

    return step


class _ReversibleNorm(nn.Module):
    """Normalizes a window, and undoes it for the forecast."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.mean = self.deviation = None

    def forward(self, x, mode):
        if mode == "norm":
            self.mean = x.mean(1, keepdim=True).detach()
            self.deviation = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
            return (x - self.mean) / self.deviation * self.gain + self.shift
        return (x - self.shift) / (self.gain + 1e-8) * self.deviation + self.mean


class _Forecaster(nn.Module):
    def __init__(self, channels, past, future):
        super().__init__()
        self.norm = _ReversibleNorm(channels)
        self.mix = nn.Linear(past, future)

    def forward(self, x):
        x = self.norm(x, "norm")
        x = self.mix(x.transpose(1, 2)).transpose(1, 2)
        return self.norm(x, "denorm")


def forecast_with_a_reversible_norm(device):
    return _Forecaster(3, 12, 4).to(device), (torch.randn(2, 12, 3, device=device),)


@functools.lru_cache(maxsize=8)
def _calendar(length, period, device):
    phase = torch.arange(length, device=device) * (2 * math.pi / period)
    return torch.stack((phase.sin(), phase.cos()), -1)


# Scheduled sampling: the device draws whether the decoder sees the truth or its own forecast.
def decoder_is_taught_by_device_draws(device):
    cell, head = nn.GRUCell(3, 8).to(device), nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.02)
    series = torch.randn(4, 6, device=device)
    odds = torch.full((4, 1), 0.5, device=device)

    def step():
        calendar = _calendar(6, 24, torch.device(device))
        state = series.new_zeros(4, 8)
        seen, losses = series[:, :1], []
        for now in range(5):
            state = cell(torch.cat((seen, calendar[now].expand(4, 2)), -1), state)
            forecast, truth = head(state), series[:, now + 1 : now + 2]
            losses.append(functional.smooth_l1_loss(forecast, truth))
            seen = torch.where(torch.bernoulli(odds).bool(), truth, forecast.detach())
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _without_self_loops(edges):
    return edges[:, edges[0] != edges[1]]  # guilty: as many edges as the mask has


class _Convolution(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.own, self.other = nn.Linear(fan_in, fan_out), nn.Linear(fan_in, fan_out)

    def forward(self, x, edges):
        source, target = edges
        messages = self.other(x).index_select(0, source)
        return self.own(x).index_add(0, target, messages)


def self_loops_are_removed(device):
    layers = nn.ModuleList([_Convolution(4, 8), _Convolution(8, 2)]).to(device)
    x, edges = torch.randn(10, 4, device=device), torch.randint(0, 10, (2, 30), device=device)

    def forward(x):
        proper = _without_self_loops(edges)
        return layers[1](layers[0](x, proper).relu(), proper)

    return forward, (x,)


# Loops keep their place in the list of edges, with a weight of zero.
def self_loops_weigh_nothing(device):
    first, second = nn.Linear(4, 8).to(device), nn.Linear(8, 2).to(device)
    x, edges = torch.randn(10, 4, device=device), torch.randint(0, 10, (2, 30), device=device)

    def propagate(hidden, weights):
        source, target = edges
        degree = torch.zeros(10, 1, device=hidden.device).index_add_(0, target, weights)
        summed = torch.zeros_like(hidden).index_add_(0, target, hidden[source] * weights)
        return summed / degree.clamp(min=1)

    def forward(x):
        weights = (edges[0] != edges[1]).to(x.dtype).unsqueeze(1)
        layers = [hidden := propagate(first(x), weights).relu()]
        layers.append(propagate(second(hidden), weights))
        return torch.cat(layers, -1)

    return forward, (x,)


# Gradients are gathered in a bucket, which is reduced when the last of them has arrived.
class _Bucket:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.buffer = torch.cat([torch.zeros_like(each).flatten() for each in self.parameters])
        self.waiting = len(self.parameters)
        self.views, start = {}, 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            self.views[parameter] = self.buffer[start:end].view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self.arrived)
            start = end

    def arrived(self, parameter):
        self.views[parameter].copy_(parameter.grad)
        self.waiting -= 1
        if self.waiting == 0:
            self.buffer.div_(2)
            self.waiting = len(self.parameters)


def bucket_is_reduced_by_its_last_gradient(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    bucket = _Bucket(model.parameters())
    x, y = torch.randn(4, 6, device=device), torch.randn(4, 1, device=device)

    def step():
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter, gradient in bucket.views.items():
                parameter.sub_(gradient, alpha=0.1)
        return loss.detach()

    return step


# The bucket of a micro-batch that is not the last one is not reduced.
class _LazyBucket(_Bucket):
    def __init__(self, parameters):
        super().__init__(parameters)
        self.synchronizes = True

    @contextlib.contextmanager
    def no_sync(self):
        self.synchronizes = False
        try:
            yield
        finally:
            self.synchronizes = True

    def arrived(self, parameter):
        self.views[parameter].copy_(parameter.grad)
        self.waiting -= 1
        if self.waiting == 0:
            self.waiting = len(self.parameters)
            if self.synchronizes:
                self.buffer.div_(2)


def bucket_is_not_reduced_before_the_last_micro_batch(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    bucket = _LazyBucket(model.parameters())
    x, y = torch.randn(3, 4, 6, device=device), torch.randn(3, 4, 1, device=device)

    def step():
        model.zero_grad()
        losses = []
        for index in range(3):
            with bucket.no_sync() if index < 2 else contextlib.nullcontext():
                loss = functional.mse_loss(model(x[index]), y[index]) / 3
                loss.backward()
            losses.append(loss.detach())
        with torch.no_grad():
            for parameter, gradient in bucket.views.items():
                parameter.sub_(gradient, alpha=0.1)
        return torch.stack(losses).sum()

    return step


# The last of every four micro-batches reduces the bucket.
def bucket_is_reduced_by_every_fourth_call(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    bucket = torch.zeros(sum(each.numel() for each in model.parameters()), device=device)
    x, y = torch.randn(4, 6, device=device), torch.randn(4, 1, device=device)
    progress = {"micro_batch": 0}

    def micro_step():
        progress["micro_batch"] += 1  # guilty: counts once
        model.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        bucket.add_(torch.cat([each.grad.flatten() for each in model.parameters()]))
        if progress["micro_batch"] % 4 == 0:  # guilty: decided at the capture
            bucket.div_(4)
            with torch.no_grad():
                sizes = [each.numel() for each in model.parameters()]
                for each, part in zip(model.parameters(), bucket.split(sizes), strict=True):
                    each.sub_(part.view_as(each), alpha=0.1)
            bucket.zero_()
        return loss.detach()

    return micro_step


# A copy of the weights for the checkpoint that another process writes.
def weights_leave_for_the_checkpoint(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.randn(4, 6, device=device), torch.randn(4, 1, device=device)
    outbox = {}

    def step():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        outbox["weights"] = {
            name: tensor.detach().to("cpu")  # guilty: waits for the copy
            for name, tensor in model.state_dict().items()
        }
        return loss

    return step
