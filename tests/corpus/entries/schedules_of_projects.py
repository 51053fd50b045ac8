"""Schedules and phases as trainers keep them: some change seldom, and some never do."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def _parts(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    return model, torch.randn(6, 8, device=device), torch.randint(4, (6,), device=device)


class _State(NamedTuple):
    step: int = 0
    best: float = math.inf


class _Loop:
    """A state that is replaced as a whole."""

    def __init__(self, model):
        self.model, self.state = model, _State()

    @torch.no_grad()
    def __call__(self, x):
        scale = 0.5 ** (self.state.step // 1000)
        self.state = self.state._replace(step=self.state.step + 1)  # guilty: no replay counts
        return self.model(x) * scale  # guilty: the scale of the capture


def state_replaced_as_a_whole(device):
    model, x, _y = _parts(device)
    return _Loop(model), (x,)


@dataclasses.dataclass(frozen=True)
class _Progress:
    epoch: int = 0
    batch: int = 0

    def advanced(self, batches):
        if self.batch + 1 == batches:
            return dataclasses.replace(self, epoch=self.epoch + 1, batch=0)
        return dataclasses.replace(self, batch=self.batch + 1)


def progress_in_a_frozen_dataclass(device):
    model, x, _y = _parts(device)
    held = {"progress": _Progress()}

    @torch.no_grad()
    def forward(x):
        progress = held["progress"]
        held["progress"] = progress.advanced(500)  # guilty: no replay counts
        noise = 0.1 / (1 + progress.epoch)
        return model(x + noise * x.flip(0))  # guilty: the noise of the capture

    return forward, (x,)


class _Phase(enum.Enum):
    WARM = "warm"
    MAIN = "main"
    COOL = "cool"


class _Machine:
    """Goes from phase to phase."""

    def __init__(self):
        self.phase, self.since = _Phase.WARM, 0
        self.limits = {_Phase.WARM: (1000, _Phase.MAIN), _Phase.MAIN: (10_000, _Phase.COOL)}

    def tick(self):
        self.since += 1  # guilty: no replay counts
        limit, following = self.limits.get(self.phase, (math.inf, self.phase))
        if self.since >= limit:
            self.phase, self.since = following, 0
        return self.phase


def phases_of_a_machine(device):
    model, x, _y = _parts(device)
    machine, extra = _Machine(), nn.Linear(4, 4).to(device)

    @torch.no_grad()
    def forward(x):
        y = model(x)
        if machine.tick() is _Phase.MAIN:  # guilty: the phase of the capture
            y = extra(y)
        return y

    return forward, (x,)


class _Piecewise:
    """A value by milestones, which `bisect` looks up."""

    def __init__(self, milestones, values):
        self.milestones, self.values, self.calls = milestones, values, 0

    def value(self):
        self.calls += 1  # guilty: no replay counts
        return self.values[bisect.bisect_right(self.milestones, self.calls)]


def margin_by_milestones(device):
    model, x, y = _parts(device)
    margin = _Piecewise([800, 5000], [0.1, 0.2, 0.3])

    def forward(x, y):
        logits = model(x) - margin.value() * functional.one_hot(y, 4)  # guilty: of the capture
        return functional.cross_entropy(logits, y)

    return forward, (x, y)


# The value between milestones is interpolated by NumPy.
def rate_interpolated_by_numpy(device):
    model, x, y = _parts(device)
    params, counter = list(model.parameters()), collections.Counter()

    def step():
        counter["updates"] += 1  # guilty: no replay counts
        rate = float(np.interp(counter["updates"], [900, 2000], [0.1, 0.01]))
        grads = torch.autograd.grad(functional.cross_entropy(model(x), y), params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.sub_(g, alpha=rate)  # guilty: the rate of the capture
        return grads[0].norm()

    return step


def _cosine(base, warm, total):
    """Yields a rate for each step; the first `warm` are the same."""
    for step in itertools.count():
        if step < warm:
            yield base
        else:
            yield base * 0.5 * (1 + math.cos(math.pi * min(1, (step - warm) / total)))


def rate_of_a_generator(device):
    model, x, y = _parts(device)
    rates, params = _cosine(0.1, 1000, 5000), list(model.parameters())

    def step():
        rate = next(rates)  # guilty: no replay asks for the next
        grads = torch.autograd.grad(functional.cross_entropy(model(x), y), params)
        torch._foreach_add_([p.data for p in params], grads, alpha=-rate)  # guilty: of the capture
        return grads[-1].sum()

    return step


class _Callbacks:
    """Calls what was registered, in order, with a shared context."""

    def __init__(self):
        self.before, self.after, self.context = [], [], {"step": 0, "drop": 0.0}

    @contextlib.contextmanager
    def around(self):
        for each in self.before:
            each(self.context)
        yield self.context
        for each in self.after:
            each(self.context)


def _raise_drop(context):
    context["drop"] = 0.1 * (context["step"] // 600)


def _count(context):
    context["step"] += 1  # guilty: no replay counts


def callbacks_with_a_context(device):
    model, x, _y = _parts(device)
    callbacks = _Callbacks()
    callbacks.before.append(_raise_drop)
    callbacks.after.append(_count)

    @torch.no_grad()
    def forward(x):
        with callbacks.around() as context:
            return functional.threshold(model(x), context["drop"], 0.0)  # guilty: of the capture

    return forward, (x,)


class _Scheduled:
    """Describes a value that follows the steps of its owner."""

    def __init__(self, function):
        self.function = function

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, owner, kind=None):
        return self.function(owner.steps)


class _Distiller(nn.Module):
    temperature = _Scheduled(lambda steps: 4.0 if steps < 1500 else 2.0)

    def __init__(self):
        super().__init__()
        self.student, self.teacher, self.steps = nn.Linear(8, 4), nn.Linear(8, 4), 0

    def forward(self, x):
        t = self.temperature
        self.steps += 1  # guilty: no replay counts
        target = (self.teacher(x).detach() / t).softmax(-1)  # guilty: of the capture
        log_p = (self.student(x) / t).log_softmax(-1)  # guilty: the temperature of the capture
        return functional.kl_div(log_p, target, reduction="batchmean") * t * t  # guilty: the same


def temperature_by_a_descriptor(device):
    model, x, _y = _parts(device)
    model = _Distiller().to(device)
    params = [*model.student.parameters()]

    def step():
        loss = model(x)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.sub_(g, alpha=0.1)
        return loss

    return step


class _Plateau:
    """Lowers a factor when a count of bad epochs is reached; the count follows the calls."""

    def __init__(self):
        self.bad, self.factor = 0, 1.0

    def __call__(self):
        self.bad += 1  # guilty: no replay counts
        if self.bad > 700:
            self.bad, self.factor = 0, self.factor * 0.5
        return self.factor


def factor_that_falls_on_a_plateau(device):
    model, x, _y = _parts(device)
    plateau = _Plateau()

    @torch.no_grad()
    def forward(x):
        return model(x) * plateau()  # guilty: the factor of the capture

    return forward, (x,)


class _Sampler:
    """Hands out tasks by turns, each for a while."""

    def __init__(self, tasks, each):
        rounds = itertools.chain.from_iterable(itertools.repeat(t, each) for t in tasks)
        self.turns = itertools.cycle(rounds)

    def __next__(self):
        return next(self.turns)  # guilty: no replay takes a turn


def tasks_by_turns(device):
    heads = nn.ModuleDict({"a": nn.Linear(8, 4), "b": nn.Linear(8, 4)}).to(device)
    _model, x, _y = _parts(device)
    sampler = _Sampler(["a", "b"], 300)

    @torch.no_grad()
    def forward(x):
        return heads[next(sampler)](x)  # guilty: the task of the capture

    return forward, (x,)


class _Registry(dict):
    """Settings by attribute, as many configuration libraries have them."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def __setattr__(self, name, value):
        self[name] = value


def settings_that_count(device):
    model, x, _y = _parts(device)
    settings = _Registry(iteration=0, freeze_after=2000)

    @torch.no_grad()
    def forward(x):
        settings.iteration += 1  # guilty: no replay counts
        if settings.iteration > settings.freeze_after:  # guilty: the branch of the capture
            return model[2](model[0](x))
        return model(x)

    return forward, (x,)


class _Ramp:
    def __init__(self, length):
        self.length, self._now = length, 0

    @property
    def now(self):
        return self._now

    @now.setter
    def now(self, value):
        self._now = value  # guilty: no replay counts

    def __float__(self):
        return min(1.0, (self._now // 400) / self.length)


def consistency_with_a_ramp(device):
    model, x, y = _parts(device)
    ramp = _Ramp(5)

    def forward(x, y):
        ramp.now = ramp.now + 1  # guilty: no replay counts
        supervised = functional.cross_entropy(model(x), y)
        consistency = (model(x) - model(x + 0.1)).square().mean()
        return supervised + float(ramp) * consistency  # guilty: the weight of the capture

    return forward, (x, y)


# The steps are counted by a decorator around the loss.
def _every(n):
    def decorate(function):
        calls = 0

        @functools.wraps(function)
        def call(*args):
            nonlocal calls
            calls += 1  # guilty: no replay counts
            extra = 0.1 if calls % n == 0 else 0.0
            return function(*args) + extra  # guilty: what the capture added

        return call

    return decorate


def loss_behind_a_decorator(device):
    model, x, y = _parts(device)

    @_every(1000)
    def loss(x, y):
        return functional.cross_entropy(model(x), y)

    return loss, (x, y)


# --- objects that look alike and never change what runs


class _Constant:
    """A schedule that was set up for one value."""

    def __init__(self, values):
        self.values, self.calls = values, 0

    def value(self):
        self.calls += 1
        return self.values[0]


# The count of calls reaches nothing.
def schedule_of_one_value(device):
    model, x, y = _parts(device)
    margin = _Constant([0.2])

    def forward(x, y):
        logits = model(x) - margin.value() * functional.one_hot(y, 4)
        return functional.cross_entropy(logits, y)

    return forward, (x, y)


# A phase that another part of the program sets, between epochs.
def phase_of_the_program(device):
    model, x, _y = _parts(device)
    machine, extra = _Machine(), nn.Linear(4, 4).to(device)

    @torch.no_grad()
    def forward(x):
        y = model(x)
        return extra(y) if machine.phase is _Phase.MAIN else y

    return forward, (x,)


# The count is a tensor of the device, and the schedule is computed there.
def schedule_on_the_device(device):
    model, x, y = _parts(device)
    params, count = list(model.parameters()), torch.zeros((), device=device)
    milestones = torch.tensor([800.0, 5000.0], device=device)
    values = torch.tensor([0.1, 0.05, 0.01], device=device)

    def step():
        count.add_(1)
        rate = values[torch.searchsorted(milestones, count.view(1), right=True)]
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p.sub_(rate * g)
        return loss

    return step


# A generator of names, which begins anew in each call.
def names_from_a_generator(device):
    heads = nn.ModuleDict({name: nn.Linear(8, 4) for name in "abc"}).to(device)
    _model, x, _y = _parts(device)

    def names():
        for number in itertools.count():
            if number == 3:
                return
            yield "abc"[number]

    @torch.no_grad()
    def forward(x):
        return functools.reduce(operator.add, (heads[name](x) for name in names()))

    return forward, (x,)


# The context is made in each call, and so is its count.
def callbacks_of_each_call(device):
    model, x, _y = _parts(device)

    @torch.no_grad()
    def forward(x):
        callbacks = _Callbacks()
        callbacks.after.append(_bump)
        for layer in model:
            with callbacks.around() as context:
                x = layer(x) * (1 + 0.1 * context["step"])
        return x

    return forward, (x,)


def _bump(context):
    context["step"] = context["step"] + 1


# A budget that is spent and filled up again within the call.
def budget_of_each_call(device):
    model, x, _y = _parts(device)
    budget = {"left": 2}

    @torch.no_grad()
    def forward(x):
        budget["left"] = 2
        while budget["left"]:
            x = x + 0.1 * model(x).mean(-1, keepdim=True)
            budget["left"] -= 1
        return x

    return forward, (x,)


class _Timer:
    """Counts and lists what was called; reports go to a log."""

    def __init__(self):
        self.names, self.count = collections.deque(maxlen=16), collections.defaultdict(int)

    def __call__(self, name):
        self.names.append(name)
        self.count[name] += 1
        return contextlib.nullcontext()


# Names and counts of calls, which decide nothing.
def timer_that_counts_calls(device):
    model, x, _y = _parts(device)
    timer = _Timer()

    @torch.no_grad()
    def forward(x):
        for index, layer in enumerate(model):
            with timer(f"layer {index}"):
                x = layer(x)
        return x

    return forward, (x,)


# The plan of the layers is computed once, from settings that stay.
def plan_that_is_cached(device):
    model, x, _y = _parts(device)
    settings = _Registry(order=(0, 1, 2), repeat=1)

    @functools.lru_cache
    def plan(order, repeat):
        return [layer for _ in range(repeat) for layer in order]

    @torch.no_grad()
    def forward(x):
        for index in plan(settings.order, settings.repeat):
            x = model[index](x)
        return x

    return forward, (x,)


class _Session:
    """Lends its context, and counts afterwards."""

    def __init__(self):
        self.context = {"step": 0, "scale": 0.5}

    @contextlib.contextmanager
    def open(self):
        yield self.context
        self.context["step"] += 1


# What is counted is one item of the context, and what is read is another.
def context_with_a_count_beside(device):
    model, x, _y = _parts(device)
    session = _Session()

    @torch.no_grad()
    def forward(x):
        with session.open() as context:
            return model(x) * context["scale"]

    return forward, (x,)
