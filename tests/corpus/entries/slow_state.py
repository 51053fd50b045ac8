"""State of the host that changes at every call and shows in the numbers only after hundreds of
calls, in places where Python keeps it: threads, types, slots, named tuples, queues."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import queue
import threading
from typing import NamedTuple

import torch
from torch import nn


def _layer_and_input(device):
    return nn.Linear(4, 4).to(device), torch.randn(2, 4, device=device)


def counts_in_a_thread_local(device):
    layer, x = _layer_and_input(device)
    local = threading.local()
    local.n = 0

    def run(x):
        local.n += 1  # guilty: no replay counts
        return layer(x) * 0.5 ** (local.n // 1000)  # guilty: the factor of the capture

    return run, (x,)


def counts_in_a_fresh_thread_local(device):
    layer, x = _layer_and_input(device)
    local = threading.local()

    def run(x):
        local.n = getattr(local, "n", 0) + 1  # guilty: no replay counts
        return layer(x) * (0.5 ** (local.n // 1000))  # guilty: the factor of the capture

    return run, (x,)


class Schedule(NamedTuple):
    step: int = 0
    base: float = 1.0


class _ReplacesItsSchedule(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.schedule = nn.Linear(4, 4), Schedule()

    def forward(self, x):
        step = self.schedule.step + 1
        self.schedule = self.schedule._replace(step=step)  # guilty: no replay advances it
        rate = self.schedule.base * 0.5 ** (self.schedule.step // 1000)
        return self.layer(x) * rate  # guilty: the rate of the capture


def replaces_a_named_tuple(device):
    return _ReplacesItsSchedule().to(device), (torch.randn(2, 4, device=device),)


class _State:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class _CountsInSlots(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.states = nn.Linear(4, 4), {"layer": _State()}

    def forward(self, x):
        state = self.states["layer"]
        state.n += 1  # guilty: no replay counts
        return self.layer(x) * 0.5 ** (state.n // 1000)  # guilty: the factor of the capture


def counts_in_slots(device):
    return _CountsInSlots().to(device), (torch.randn(2, 4, device=device),)


class _CountsInItsType(nn.Module):
    steps = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        type(self).steps += 1  # guilty: no replay counts
        return self.layer(x) * 0.5 ** (
            type(self).steps // 1000
        )  # guilty: the factor of the capture


def counts_in_its_type(device):
    return _CountsInItsType().to(device), (torch.randn(2, 4, device=device),)


class _CountsByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.count_train = self.count_eval = 0

    def forward(self, x):
        name = "count_train" if self.training else "count_eval"
        setattr(self, name, getattr(self, name) + 1)  # guilty: no replay counts
        factor = 0.5 ** (getattr(self, name) // 1000)
        return self.layer(x) * factor  # guilty: the factor of the capture


def counts_by_a_computed_name(device):
    return _CountsByName().to(device), (torch.randn(2, 4, device=device),)


def rotates_a_long_plan(device):
    layer, x = _layer_and_input(device)
    plan = collections.deque([1.0] * 500 + [0.5] * 500)

    def run(x):
        plan.rotate(-1)  # guilty: no replay rotates it
        return layer(x) * plan[0]  # guilty: the factor of the capture

    return run, (x,)


def takes_from_a_queue(device):
    layer, x = _layer_and_input(device)
    factors = queue.SimpleQueue()
    for k in range(10000):
        factors.put(1.0 - k // 1000 / 10)

    def run(x):
        return layer(x) * factors.get()  # guilty: no replay takes another one

    return run, (x,)


class _Lookahead:
    def __init__(self, inner, every=5):
        self.inner, self.every, self.steps = inner, every, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in inner.param_groups]

    def step(self):
        self.inner.step()
        self.steps += 1
        if self.steps % self.every:  # guilty: the steps that synchronize are those of the capture
            return
        with torch.no_grad():
            for group, slow in zip(self.inner.param_groups, self.slow, strict=True):
                for parameter, old in zip(group["params"], slow, strict=True):
                    old.add_(parameter - old, alpha=0.5)
                    parameter.copy_(old)


def looks_ahead_every_five_steps(device):
    layer, x = _layer_and_input(device)
    optimizer = _Lookahead(torch.optim.SGD(layer.parameters(), lr=0.1, foreach=True))

    def step():
        loss = layer(x).square().mean()
        layer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def depth_of_a_thread(device):
    layer, x = _layer_and_input(device)
    local = threading.local()

    def run(x):
        local.depth = getattr(local, "depth", 0) + 1
        try:
            return layer(x) * (1.0 / local.depth)
        finally:
            local.depth -= 1

    return run, (x,)


class _Counted(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        type(self).calls += 1
        return self.layer(x).tanh()


def counts_its_calls_in_its_type(device):
    return _Counted().to(device), (torch.randn(2, 8, device=device),)


def configuration_built_again(device):
    @dataclasses.dataclass
    class Config:
        scale: float = 0.5
        order: tuple = (1, 0)

    config = Config()
    layer, x = _layer_and_input(device)

    def run(x):
        local = dataclasses.replace(config, scale=config.scale)
        return layer(x).permute(*local.order) * local.scale

    return run, (x,)


def plans_by_shape(device):
    plans = collections.OrderedDict()
    layer, x = _layer_and_input(device)

    def run(x):
        key = (tuple(x.shape), x.dtype)
        if key not in plans:
            plans[key] = 1.0 / x.shape[-1] ** 0.5
            if len(plans) > 8:
                plans.popitem(last=False)
        plans.move_to_end(key)
        return layer(x) * plans[key]

    return run, (x,)


class _Cache:
    __slots__ = ("hits", "table")

    def __init__(self):
        self.hits, self.table = collections.Counter(), {}

    def get(self, key, make):
        self.hits[key] += 1
        if key not in self.table:
            self.table[key] = make()
        return self.table[key]


def cache_in_slots(device):
    cache = _Cache()
    x = torch.randn(2, 4, device=device)

    def run(x):
        mask = cache.get(
            ("causal", x.shape[-1]), lambda: torch.tril(torch.ones(4, 4, device=x.device))
        )
        return x @ mask

    return run, (x,)


def buffer_lent_and_given_back(device):
    free = [torch.zeros(2, 4, device=device)]
    layer, x = _layer_and_input(device)
    layer.requires_grad_(False)

    def run(x):
        buffer = free.pop()
        try:
            torch.mul(x, 2, out=buffer)
            return layer(buffer)
        finally:
            free.append(buffer)

    return run, (x,)


def heap_of_one_call(device):
    layer, x = _layer_and_input(device)

    def run(x):
        todo = [(3, "c"), (1, "a"), (2, "b")]
        heapq.heapify(todo)
        while todo:
            k, _ = heapq.heappop(todo)
            x = layer(x) * (1 / k)
        return x

    return run, (x,)
