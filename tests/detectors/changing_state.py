"""Entry points whose host state changes, and two calls in a row may not show it. The line to blame
carries its code."""

import array
import collections
import contextlib
import contextvars
import copy
import ctypes
import datetime
import enum
import fractions
import functools
import hashlib
import heapq
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import queue
import random
import signal
import sqlite3
import tempfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

STEP = 0
RATES = [0.1] * 1000 + [0.01] * 1000
generator = random.Random(3)
position = contextvars.ContextVar("position", default=0)


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def decay_every_thousand_steps(device):
    state = {"step": 0}

    def scale(x):
        state["step"] += 1  # <- cpu-state-step-counter
        return x * 0.9 ** (state["step"] // 1000)

    return scale, (rows(device),)


class Decaying(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.rate = 1.0

    def forward(self, x):
        self.steps += 1  # <- cpu-state-step-counter
        if self.steps % 500 == 0:
            self.rate *= 0.5
        return x * self.rate


def rate_halved_now_and_then(device):
    return Decaying().to(device), (rows(device),)


def table_by_step(device):
    def scale(x):
        global STEP
        rate = RATES[min(STEP, len(RATES) - 1)]
        STEP += 1  # <- cpu-state-step-counter
        return x * rate

    return scale, (rows(device),)


def counter_of_itertools(device):
    counter = itertools.count()

    def scale(x):
        step = next(counter)
        return x * math.exp(-(step // 100))  # <- python-scalar-frozen

    return scale, (rows(device),)


def counter_as_a_default(device):
    def scale(x, counter=itertools.count()):
        exponent = next(counter) // 64
        return x / 2**exponent  # <- python-scalar-frozen

    return scale, (rows(device),)


def generator_of_the_user(device):
    def schedule():
        step = 0
        while True:
            yield 1.0 if step < 100 else 0.1
            step += 1

    rates = schedule()

    def scale(x):
        return x * next(rates)  # <- python-scalar-frozen

    return scale, (rows(device),)


def rare_branch(device):
    def drop(x):
        if random.random() < 0.01:  # <- control-flow-frozen
            return torch.zeros_like(x)
        return x * 2

    return drop, (rows(device),)


def rare_branch_in_place(device):
    noise = rows(device)

    def perturb(x):
        y = x * 2
        if generator.random() < 0.001:  # <- control-flow-frozen
            y.add_(noise)
        return y

    return perturb, (rows(device),)


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < 1e-9:  # <- control-flow-frozen
                continue
            x = layer(x)
        return x


def layer_drop(device):
    return LayerDrop().to(device), (rows(device),)


def skipped_by_numpy(device):
    source = np.random.default_rng(0)

    def drop(x):
        y = x + 1
        if source.random() < 0.002:  # <- control-flow-frozen
            y = y * 2
        return y

    return drop, (rows(device),)


def numpy_noise(device):
    def noisy(x):
        scale = round(float(np.random.normal(1, 1e-9)), 3)  # <- rng-frozen-seed
        return x * scale

    return noisy, (rows(device),)


class Augments:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, x):
        x = torch.roll(x, int(self.rng.integers(-9, 10)), 0)  # <- rng-frozen-seed
        return x * float(self.rng.uniform(0.8, 1.2))  # <- rng-frozen-seed


def two_draws_of_one_generator(device):
    return Augments(), (rows(device),)


def _hooked(device, hook):
    model = nn.Sequential(nn.Linear(8, 8)).to(device)
    model[0].register_forward_pre_hook(hook)
    return model, (rows(device),)


def hook_returns_another_input_in_even_calls(device):
    calls = {"n": 0}

    def hook(module, args):  # <- child-module-hooks-captured
        calls["n"] += 1
        if calls["n"] % 2 == 0:  # <- control-flow-frozen
            return (args[0] + 1,)
        return None

    return _hooked(device, hook)


def hook_returns_another_input_in_odd_calls(device):
    calls = {"n": 0}

    def hook(module, args):  # <- child-module-hooks-captured
        calls["n"] += 1
        if calls["n"] % 2 == 1:  # <- control-flow-frozen
            return (args[0] + 1,)
        return None

    return _hooked(device, hook)


def hook_begins_after_many_calls(device):
    calls = {"n": 0}

    def hook(module, args):  # <- child-module-hooks-captured
        calls["n"] += 1
        x = args[0]
        if calls["n"] > 40:  # <- control-flow-frozen
            return (x * 2,)
        return None

    return _hooked(device, hook)


def _gradients_in(device, parity):
    weight = nn.Parameter(torch.randn(8, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    calls = {"n": 0}

    def step():
        calls["n"] += 1
        weight.grad = None
        loss = weight.square().sum()
        loss.backward()
        if calls["n"] % 2 == parity:  # <- control-flow-frozen
            weight.grad = weight.grad * 0.5
        optimizer.step()
        return loss.detach()

    return step


def gradients_are_scaled_in_even_calls(device):
    return _gradients_in(device, 0)


def gradients_are_scaled_in_odd_calls(device):
    return _gradients_in(device, 1)


def helper_decides_for_its_caller(device):
    calls = {"n": 0}
    layer = nn.Linear(8, 8).to(device)

    def scaled(x):  # noqa: RET503
        calls["n"] += 1
        if calls["n"] % 2 == 0:  # <- control-flow-frozen
            return (x + 1,)

    def forward(x):
        result = scaled(x)
        if result is not None:
            x = result[0]
        return layer(x)

    return forward, (rows(device),)


def blocks_come_back_when_none_is_free(device):
    table = torch.zeros(12, 8, device=device)
    free, used = collections.deque(range(12)), collections.deque()

    def write(x):
        if not free:
            free.append(used.popleft())
        block = free.popleft()  # <- cpu-state-step-counter
        used.append(block)
        table[block] = x[0]
        return table.sum()

    return write, (rows(device),)


class Scales:
    def __init__(self):
        self.gain, self.shift = 1.0, 0.5

    def __call__(self, x):
        self.gain, self.shift = self.gain * 0.9, self.shift + 1  # <- cpu-state-step-counter
        return x * self.gain + self.shift


def two_numbers_on_one_line(device):
    return Scales(), (rows(device),)


class Feeds:
    def __init__(self, device):
        self.batches = itertools.cycle(torch.rand(3, 4, 8, device=device))

    def __next__(self):
        return next(self.batches)


def batch_of_an_inner_object(device):
    feeds = Feeds(device)

    def step():
        x = next(feeds)
        y = x * 2  # <- python-side-effects-skipped
        return y + x

    return step


def two_draws_kept_in_names(device):
    rng = np.random.default_rng(0)

    def augment(x):
        shift = int(rng.integers(-9, 10))  # <- rng-frozen-seed
        scale = float(rng.uniform(0.8, 1.2))
        return torch.roll(x, shift, 0) * scale

    return augment, (rows(device),)


def rounded_choice(device):
    def pick(x):
        k = random.choice([2] * 99 + [3])  # <- rng-frozen-seed
        return x.repeat(k, 1)

    return pick, (rows(device),)


def deadline(device):
    end = time.monotonic() + 3600

    def refine(x):
        if time.monotonic() < end:  # <- control-flow-frozen
            x = x * 2
        return x + 1

    return refine, (rows(device),)


def warm_up_by_the_clock(device):
    begun = time.time()

    def scale(x):
        weight = min(1.0, (time.time() - begun) // 3600)  # <- cpu-work-in-region
        return x * weight

    return scale, (rows(device),)


def by_the_hour(device):
    def scale(x):
        hour = datetime.datetime.now().hour  # <- cpu-work-in-region
        return x + hour

    return scale, (rows(device),)


class Ticks(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.count = 0

    def run(self):
        while True:
            time.sleep(30)
            self.count += 1


def counted_by_a_thread(device):
    ticks = Ticks()
    ticks.start()

    def scale(x):
        return x * ticks.count  # <- python-scalar-frozen

    return scale, (rows(device),)


def flag_of_a_timer(device):
    state = {"phase": 0}

    def advance():
        state["phase"] = 1

    timer = threading.Timer(3600, advance)
    timer.daemon = True
    timer.start()

    def act(x):
        if state["phase"] == 1:  # <- control-flow-frozen
            return x.tanh()
        return x.relu()

    return act, (rows(device),)


def counter_behind_a_lock(device):
    lock, calls = threading.Lock(), [0]

    def scale(x):
        with lock:
            calls[0] += 1  # <- cpu-state-step-counter
            step = calls[0]
        return x * (1.0 if step < 10_000 else 0.5)

    return scale, (rows(device),)


@dataclass
class Progress:
    step: int = 0

    def warmth(self):
        self.step += 1  # <- cpu-state-step-counter
        return min(1.0, self.step // 1000)


def helper_that_counts(device):
    progress = Progress()

    def scale(x):
        return x * progress.warmth()

    return scale, (rows(device),)


class Scheduled(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = 0

    @property
    def weight(self):
        return 0.5 ** (self.seen // 256)

    def forward(self, x):
        self.seen += 1  # <- cpu-state-step-counter
        return x * self.weight


def property_of_a_counter(device):
    return Scheduled().to(device), (rows(device),)


def nonlocal_counter(device):
    calls = 0

    def run(x):
        nonlocal calls
        calls += 1
        if calls % 1000 == 0:  # <- control-flow-frozen
            x = x.clamp(-1, 1)
        return x * 2

    return run, (rows(device),)


def function_attribute(device):
    def run(x):
        run.calls += 1
        return x * 2 if run.calls < 500 else x * 3  # <- control-flow-frozen

    run.calls = 0
    return run, (rows(device),)


class Counted(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        n = Counted.calls
        for _ in range(2 + n // 1000):  # <- control-flow-frozen
            x = x + 1
        return x


def class_attribute(device):
    return Counted().to(device), (rows(device),)


def deque_of_rates(device):
    rates = collections.deque([1.0] * 50 + [0.5])

    def run(x):
        rates.rotate(1)  # <- cpu-state-step-counter
        return x * rates[0]

    return run, (rows(device),)


class Phase(enum.Enum):
    WARM = 1
    HOT = 2


class Phased(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase, self.calls = Phase.WARM, 0

    def _advance(self):
        self.calls += 1
        if self.calls == 10_000:
            self.phase = Phase.HOT

    def forward(self, x):
        self._advance()
        return x * 2 if self.phase is Phase.WARM else x.exp()  # <- control-flow-frozen


def phases(device):
    return Phased().to(device), (rows(device),)


def through_arguments(device):
    state = {"n": 0}

    def blend(x, y, weight):
        return x * weight + y

    def run(x):
        state["n"] += 1  # <- cpu-state-step-counter
        ratio = min(state["n"], 1000)
        return blend(x, x.relu(), ratio)

    return run, (rows(device),)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)
        self.steps = 0

    def forward(self, x):
        self.steps += 1  # <- cpu-state-step-counter
        self.drop.p = min(0.5, 0.1 * (self.steps // 1000))
        return self.drop(x) * 2


def rate_of_a_module(device):
    return Dropping().to(device), (rows(device),)


class Shuffled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        order = list(self.layers)
        random.shuffle(order)  # <- rng-frozen-seed
        for layer in order:
            x = layer(x)
        return x


def shuffled_layers(device):
    return Shuffled().to(device), (rows(device),)


def unrelated_random(device):
    state = {"calls": 0}

    def run(x):
        random.random()
        started = time.perf_counter()
        state["calls"] += 1  # <- cpu-state-step-counter
        y = x * state["calls"]
        state["took"] = time.perf_counter() - started
        return y

    return run, (rows(device),)


def unrelated_host_op(device):
    seen = torch.zeros(())
    state = {"calls": 0}

    def run(x):
        seen.add_(1)
        state["calls"] += 1  # <- cpu-state-step-counter
        return x * state["calls"]

    return run, (rows(device),)


def make_scaler(power):
    count = 0

    def scale(x):
        nonlocal count
        count += 1  # <- cpu-state-step-counter
        return x * power ** (count // 100)

    return scale


unused = [make_scaler(2.0) for _ in range(3)]


def one_of_several_closures(device):
    used = make_scaler(0.5)
    unused.append(make_scaler(0.25))
    return used, (rows(device),)


def correction_on_the_host(device):
    state = {"t": 0}

    def correct(x):
        state["t"] += 1  # <- cpu-state-step-counter
        return x / torch.tensor(1 - 0.9 ** state["t"])

    return correct, (rows(device),)


def history_of_outputs(device):
    outs = [rows(device), rows(device)]

    def run(x):
        outs.append(x * 2)  # <- python-side-effects-skipped
        return outs[-1] + outs[-2]  # <- metadata-address-changed

    return run, (rows(device),)


class Cache:
    """Large, so that the new one is where the old one was freed."""

    def __init__(self, device):
        self.values = torch.ones(10 << 20, device=device)

    def step(self, x):
        y = x + self.values[:5]  # <- metadata-address-changed
        self.values = None
        self.values = torch.ones(10 << 20, device=x.device).mul_(2)
        return y


def cache_at_the_same_address(device):
    return Cache(device).step, (torch.ones(5, device=device),)


def lambda_with_a_counter(device):
    counter = itertools.count(1)
    return (lambda x: x * (next(counter) // 1000)), (rows(device),)  # <- python-scalar-frozen


def slice_that_grows(device):
    state = {"length": 1000}

    def visible(x):
        length = state["length"] // 1000
        state["length"] += 1  # <- cpu-state-step-counter
        return x[:, :length].sum()

    return visible, (rows(device),)


def in_a_comprehension(device):
    state = {"n": 0}

    def run(x):
        state["n"] += 1  # <- cpu-state-step-counter
        parts = [x * (k + state["n"] // 100) for k in range(2)]
        return torch.cat(parts)

    return run, (rows(device),)


def early_return(device):
    state = {"n": 0}

    def run(x):
        state["n"] += 1
        y = x + 1
        if state["n"] < 1000:  # <- control-flow-frozen
            return y
        return y.tanh()

    return run, (rows(device),)


def context_variable(device):
    def run(x):
        step = position.get()
        position.set(step + 1)
        return x * 0.5 ** (step // 1000)  # <- python-scalar-frozen

    return run, (rows(device),)


def bound_argument(device):
    state = {"n": 0}

    def work(state, x):
        state["n"] += 1  # <- cpu-state-step-counter
        return x * max(1, state["n"] // 100)

    return partial(work, state), (rows(device),)


def walrus(device):
    counter = itertools.count()

    def run(x):
        if (step := next(counter)) > 1000:  # <- control-flow-frozen
            x = x / step
        return x + 1

    return run, (rows(device),)


def autocast_after_a_while(device):
    state = {"n": 0}
    weight = rows(device, 8, 8)

    def run(x):
        state["n"] += 1
        half = state["n"] > 1000
        with torch.autocast("cuda", enabled=half):  # <- control-flow-frozen
            return x @ weight

    return run, (rows(device),)


def gradient_step_with_a_schedule(device):
    weight = nn.Parameter(rows(device, 8, 8))
    state = {"step": 0}
    x = rows(device)

    def step():
        state["step"] += 1  # <- cpu-state-step-counter
        rate = 0.1 * 0.5 ** (state["step"] // 1000)
        (grad,) = torch.autograd.grad((x @ weight).square().mean(), weight)
        with torch.no_grad():
            weight.sub_(grad, alpha=rate)

    return step


def match_statement(device):
    counter = itertools.count()

    def run(x):
        match next(counter) // 1000:  # <- control-flow-frozen
            case 0:
                y = x.relu()
            case _:
                y = x.tanh()
        return y

    return run, (rows(device),)


def seed_of_the_user(device):
    index = torch.arange(8, device=device)

    def noisy(x):
        seed = random.getrandbits(1)  # <- rng-frozen-seed
        return x + (index * 1103515245 + seed) % 7

    return noisy, (rows(device),)


def gate_by_a_cpu_tensor(device):
    history = torch.zeros(4)

    def run(x):
        history.mul_(0.9).add_(0.1)  # <- cpu-work-in-region
        scale = round(history.mean().item() * 0.001)
        return x * scale

    return run, (rows(device),)


def scheduler_inside(device):
    weight = nn.Parameter(rows(device))
    optimizer = torch.optim.Adam([weight], lr=0.1, capturable=True)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 1000)

    def step():
        optimizer.zero_grad(set_to_none=True)
        weight.square().sum().backward()
        optimizer.step()
        decay.step()  # <- lr-frozen-despite-capturable

    return step


def scheduler_around_a_number(device):
    weight = nn.Parameter(rows(device))
    settings = {"lr": 0.1, "capturable": True}
    optimizer = torch.optim.Adam([weight], **settings)  # <- lr-frozen-despite-capturable
    optimizer.decay = torch.optim.lr_scheduler.StepLR(optimizer, 1000)

    def step():
        optimizer.zero_grad(set_to_none=True)
        weight.square().sum().backward()
        optimizer.step()

    return step


def target_network(device):
    online, target = (nn.Linear(8, 8).to(device) for _ in range(2))
    updates = 0

    def run(x):
        nonlocal updates
        y = online(x) - target(x)
        updates += 1
        if updates % 500 == 0:  # <- control-flow-frozen
            target.load_state_dict(online.state_dict())
        return y

    return run, (rows(device),)


def helper_that_rarely_runs(device):
    weight, average = rows(device), rows(device)

    def synchronize():
        with torch.no_grad():
            average.copy_(weight)

    def run(x):
        y = x * average
        if generator.random() < 1e-9:  # <- control-flow-frozen
            synchronize()
        return y

    return run, (rows(device),)


COUNTS = {"noise": 0}


def add_noise(x: torch.Tensor) -> torch.Tensor:
    COUNTS["noise"] += 1  # <- cpu-state-step-counter
    return x + 0.01 * COUNTS["noise"]


jitter = torch.library.custom_op("changing_state::jitter", add_noise, mutates_args=())


def counted_in_an_op(device):
    """By `add_noise`."""

    def run(x):
        return jitter(x) * 2

    return run, (rows(device),)


def hook_that_collects(device):
    kept = []
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)

    def collect(module, args, out):  # <- child-module-hooks-captured
        kept.append(out.detach())  # <- python-side-effects-skipped

    model[0].register_forward_hook(collect)
    return model, (rows(device),)


class Asked:
    """What Python calls by itself counts the calls."""

    def __init__(self):
        self.calls = 0

    def count(self):
        self.calls += 1  # <- cpu-state-step-counter
        return self.calls // 1000


class Tested:
    def __init__(self):
        self.calls = 0

    def __bool__(self):
        self.calls += 1
        return self.calls % 16 == 0


class Looped(Asked):
    def __iter__(self):
        return iter((1.0, 2.0 + self.count()))


class Entered(Asked):
    def __enter__(self):
        return self.count()

    def __exit__(self, *_error):
        pass


def object_in_a_condition(device):
    """By `Tested`."""
    due = Tested()

    def run(x):
        y = x * 2
        if due:  # <- control-flow-frozen
            y = y + x.sum()
        return y

    return run, (rows(device),)


def object_in_a_loop(device):
    """By `Asked`."""
    factors = Looped()

    def run(x):
        for factor in factors:  # <- control-flow-frozen
            x = x * factor
        return x

    return run, (rows(device),)


def object_that_is_unpacked(device):
    """By `Asked`."""
    factors = Looped()

    def run(x):
        _, factor = factors
        return x * factor

    return run, (rows(device),)


def object_of_a_with(device):
    """By `Asked`."""
    entered = Entered()

    def run(x):
        with entered as count:
            return x * count

    return run, (rows(device),)


class PerThread(threading.local):
    def __init__(self):
        self.calls = 0


def attribute_of_a_thread(device):
    kept = PerThread()

    def run(x):
        kept.calls += 1  # <- cpu-state-step-counter
        return x * 0.5 ** (kept.calls // 1000)

    return run, (rows(device),)


class Stage(NamedTuple):
    step: int = 0
    scale: float = 1.0


def rate_of(stage):
    return 0.5 ** (stage.step // 1000)


class Replaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage = Stage()

    def forward(self, x):
        self.stage = self.stage._replace(  # <- cpu-state-step-counter
            step=self.stage.step + 1
        )
        return x * rate_of(self.stage)


def fields_replaced(device):
    return Replaced().to(device), (rows(device),)


class Rebuilt(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = SimpleNamespace(rate=1.0)
        self.calls = 0

    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        self.settings = SimpleNamespace(rate=0.5 ** (self.calls // 1000))
        return x * self.settings.rate


def object_built_again(device):
    return Rebuilt().to(device), (rows(device),)


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


def slots_by_a_computed_key(device):
    states = {shape: Slotted() for shape in ((4, 8), (2, 8))}

    def run(x):
        state = states[tuple(x.shape)]
        state.count += 1  # <- cpu-state-step-counter
        return x * 0.5 ** (state.count // 1000)

    return run, (rows(device),)


class OfItsType(nn.Module):
    steps = 0

    def forward(self, x):
        type(self).steps += 1  # <- cpu-state-step-counter
        return x * 0.5 ** (OfItsType.steps // 1000)


def attribute_of_a_type(device):
    return OfItsType().to(device), (rows(device),)


class OfAClassMethod(nn.Module):
    steps = 0

    @classmethod
    def advance(cls):
        cls.steps = cls.steps + 1  # <- cpu-state-step-counter
        return cls.steps // 1000

    def forward(self, x):
        return x * 0.5 ** self.advance()


def attribute_of_a_class_method(device):
    return OfAClassMethod().to(device), (rows(device),)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.count_train = self.count_eval = 0

    def bump(self, name):
        setattr(self, name, getattr(self, name) + 1)  # <- cpu-state-step-counter

    def forward(self, x):
        name = "count_train" if self.training else "count_eval"
        self.bump(name)
        return x * 0.5 ** (getattr(self, name) // 1000)


def attribute_by_a_computed_name(device):
    return Named().to(device), (rows(device),)


def long_plan_rotated(device):
    plan = collections.deque([1.0] * 500 + [0.5] * 500)

    def run(x):
        plan.rotate(-1)  # <- python-side-effects-skipped
        return x * plan[0]

    return run, (rows(device),)


def long_plan_of_pairs(device):
    plan = [(k, 1.0 if k < 500 else 0.5) for k in range(1000)]

    def run(x):
        plan.append(plan.pop(0))  # <- python-side-effects-skipped
        _, rate = plan[0]
        return x * rate

    return run, (rows(device),)


def number_handed_on_in_a_queue(device):
    rates = queue.Queue()
    rates.put(1.0)

    def run(x):
        rate = rates.get()
        rates.put(rate * 0.9)
        return x * rate  # <- python-scalar-frozen

    return run, (rows(device),)


def queue_in_c(device):
    rates = queue.SimpleQueue()
    for k in range(1000):
        rates.put(1.0 - k // 100 / 10)

    def run(x):
        return x * rates.get()  # <- cpu-work-in-region

    return run, (rows(device),)


class Slow:
    def __init__(self, weights, every=5):
        self.weights, self.every, self.calls = weights, every, 0
        self.slow = [weight.clone() for weight in weights]

    def step(self):
        self.calls += 1
        if self.calls % self.every:  # <- control-flow-frozen
            return
        for weight, slow in zip(self.weights, self.slow, strict=True):
            slow.lerp_(weight, 0.5)
            weight.copy_(slow)


def return_before_an_update(device):
    weights = [rows(device), rows(device)]
    keep = Slow(weights)

    def run(x):
        y = x * weights[0] + weights[1]
        keep.step()
        return y

    return run, (rows(device),)


def skipped_in_a_loop(device):
    weights, calls = [rows(device), rows(device)], [0]

    def run(x):
        calls[0] += 1
        for weight in weights:
            if calls[0] % 100:  # <- control-flow-frozen
                continue
            weight.mul_(0.5)
        return x * weights[0]

    return run, (rows(device),)


def number_that_backward_gets(device):
    """The number of a backward op is that of its forward op: one finding."""
    layer, calls = nn.Linear(8, 8, device=device), itertools.count(1)

    def run(x):
        weight = 1.0 / next(calls)
        return layer(x).square().mean() * weight  # <- python-scalar-frozen

    return run, (rows(device),)


class LayersLeftOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            if generator.random() < 0.5:  # <- control-flow-frozen
                continue
            x = x + layer(x)
        return x


def layers_left_out(device):
    """That a call leaves some unused is no finding of its own."""
    return LayersLeftOut().to(device), (rows(device),)


def number_that_cools(device):
    sampler = SimpleNamespace(temperature=1.0)

    def run(x):
        y = x / sampler.temperature
        sampler.temperature = max(0.1, sampler.temperature * 0.9)  # <- cpu-state-step-counter
        return y

    return run, (rows(device),)


def time_that_passes(device):
    filter_ = SimpleNamespace(time=0.0)

    def run(x):
        filter_.time += 0.25  # <- cpu-state-step-counter
        return x * filter_.time

    return run, (rows(device),)


def rate_of_an_optimizer(device):
    layer, calls = nn.Linear(8, 8, device=device), itertools.count(1)
    rate = torch.tensor(0.1, device=device)
    parameters = layer.parameters()
    optimizer = torch.optim.Adam(  # <- lr-frozen-despite-capturable
        parameters, lr=rate, capturable=True
    )

    def run():
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, next(calls) / 1000)  # <- python-scalar-frozen
        layer(rows(device)).sum().backward()
        optimizer.step()

    return run


class OwnAdam(torch.optim.Optimizer):
    def __init__(self, parameters):
        defaults = {"rate": 1e-2, "decay": 0.9}
        super().__init__(parameters, defaults)  # <- optimizer-without-capture-guard

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"], state["mean"] = 0, torch.zeros_like(parameter)
                state["step"] += 1  # <- cpu-state-step-counter
                state["mean"].lerp_(parameter.grad, 1 - group["decay"])
                size = group["rate"] / (1 - group["decay"] ** state["step"])
                parameter.add_(state["mean"], alpha=-size)


def step_of_an_own_optimizer(device):
    layer = nn.Linear(8, 8, device=device)
    optimizer = OwnAdam(layer.parameters())

    def run():
        layer.zero_grad()
        layer(rows(device)).square().mean().backward()
        optimizer.step()

    return run


def flag_in_pinned_memory(device):
    flag = torch.zeros(1, pin_memory=True)

    def run(x):
        flag.copy_((x.sum() > 0).float().view(1), non_blocking=True)
        return x * 2 if flag[0] > 0 else x  # <- control-flow-frozen

    return run, (rows(device),)


def scale_in_pinned_memory(device):
    peak = torch.ones(1, pin_memory=True)

    def run(x):
        peak.copy_(x.max().view(1), non_blocking=True)  # <- cpu-work-in-region
        return x / float(peak)

    return run, (rows(device),)


def part_of_a_table_by_number(device):
    table = torch.linspace(1.0, 0.0, 64, device=device)
    place = None

    def run(x):
        nonlocal place
        if place is None:
            place = 0
        here, after = table[place], table[place + 1]
        place = (place + 1) % 63  # <- cpu-state-step-counter
        return x * here + (after - here)

    return run, (rows(device),)


def dropout_that_an_object_anneals(device):
    drop = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(8, 8), drop, nn.Linear(8, 1)).to(device)
    rates = {"step": 0}
    x = rows(device)

    def run():
        vars(drop)["p"] = 0.5 * (1 - rates["step"] / 1000)
        model.zero_grad()
        loss = model(x).mean()  # <- python-scalar-frozen
        loss.backward()
        rates["step"] += 1  # <- cpu-state-step-counter
        return loss

    return run


def foreach_ops_every_thousand_steps(device):
    weight, slow = rows(device), rows(device)
    state = {"step": 0}

    def step():
        state["step"] += 1
        weight.mul_(0.99)
        if state["step"] % 1000 == 0:  # <- control-flow-frozen
            torch._foreach_lerp_([slow], [weight], 0.5)
        return slow * 2

    return step


def writes_by_out_every_thousand_steps(device):
    weight = rows(device)
    state = {"step": 0}

    def step():
        state["step"] += 1
        if state["step"] % 1000 == 0:  # <- control-flow-frozen
            torch.mul(weight, 0.5, out=weight)
        return weight * 2

    return step


def data_of_the_target_network(device):
    online, target = (nn.Linear(8, 8).to(device) for _ in range(2))
    state = {"step": 0}

    def step():
        state["step"] += 1
        if state["step"] % 1000 == 0:  # <- control-flow-frozen
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.data = 0.9 * old.data + 0.1 * new.data
        return target.weight * 2

    return step


def averages_every_thousand_steps(device):
    model = nn.Linear(8, 8).to(device)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    state = {"step": 0}

    def step():
        state["step"] += 1
        with torch.no_grad():
            model.weight.mul_(0.99)
        if state["step"] % 1000 == 0:  # <- control-flow-frozen
            averaged.update_parameters(model)
        return averaged.module.weight * 2

    return step


def reduces_every_thousand_steps(device):
    weight = rows(device)
    state = {"step": 0}

    def step():
        state["step"] += 1
        if state["step"] % 1000 == 0:  # <- control-flow-frozen
            torch.distributed.all_reduce(weight)
        return weight * 2

    return step


def drops_in_place_every_thousand_steps(device):
    weight = rows(device)
    state = {"step": 0}

    def step():
        state["step"] += 1
        if state["step"] % 1000 == 0:  # <- control-flow-frozen
            nn.functional.dropout(weight, 0.5, inplace=True)
        return weight * 2

    return step


def calibrates_every_thousand_steps(device):
    norm = nn.BatchNorm1d(8).to(device)
    x = rows(device)
    state = {"step": 0}

    def step():
        state["step"] += 1
        if state["step"] % 1000 == 0:  # <- control-flow-frozen
            norm(x)
        return norm.running_mean * 2

    return step


def numpy_reads_a_host_copy(device):
    def scale(x):
        host = x.mean(1).to("cpu", non_blocking=True)  # <- cpu-work-in-region
        return x * host.numpy().max()

    return scale, (rows(device),)


def numpy_array_on_a_host_copy(device):
    host = torch.zeros(4, pin_memory=True)
    array = host.numpy()

    def scale(x):
        host.copy_(x.mean(1), non_blocking=True)
        return x * float(array[0])  # <- cpu-work-in-region

    return scale, (rows(device),)


def chunks_by_free_memory(device):
    layer = nn.Linear(8, 8).to(device)

    def forward(x):
        free, _ = torch.cuda.mem_get_info()  # <- cpu-work-in-region
        return torch.cat([layer(part) for part in x.chunk(1 if free > 2**20 else 4)])

    return forward, (rows(device),)


def casts_after_a_while(device):
    state = {"step": 0}

    def forward(x):
        state["step"] += 1  # <- cpu-state-step-counter
        return x.to(torch.bfloat16 if state["step"] > 400 else torch.float32).tanh()

    return forward, (rows(device),)


def divides_by_another_size(device):
    state = {"step": 0}

    def forward(x):
        state["step"] += 1  # <- cpu-state-step-counter
        return x / x.size(state["step"] // 1000 % 2)

    return forward, (rows(device),)


def reads_its_configuration(device):
    path = pathlib.Path(tempfile.mkdtemp()) / "config.json"
    path.write_text('{"scale": 0.5}')

    def forward(x):
        config = json.loads(path.read_text())  # <- cpu-work-in-region
        return x * config["scale"]

    return forward, (rows(device),)


def stops_if_a_file_exists(device):
    def forward(x):
        if os.path.exists("/nowhere/stop"):  # noqa: PTH110  # <- control-flow-frozen
            return x
        return x * 2

    return forward, (rows(device),)


def callbacks_of_a_late_step(device):
    weight = rows(device)
    callbacks = {1000: [partial(weight.mul_, 2)]}
    state = {"step": 0}

    def step():
        state["step"] += 1
        for callback in callbacks.get(state["step"], []):  # <- control-flow-frozen
            callback()
        return weight * 2

    return step


class Refreshing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(8))
        self.calls = 0

    @torch.no_grad()
    def refresh(self, x):
        self.mask.copy_((x.mean(0) > 0).float())

    def forward(self, x):
        self.calls += 1
        if self.calls % 700 == 0:  # <- control-flow-frozen
            self.refresh(x)
        return x * self.mask


def mask_refreshed_by_a_decorated_method(device):
    return Refreshing().to(device), (rows(device),)


def shared_step(device):
    step = multiprocessing.Value("i", 0)

    def forward(x):
        step.value += 1  # <- cpu-state-step-counter
        return x * 0.5 ** (step.value // 1000)

    return forward, (rows(device),)


def steps_in_an_array(device):
    steps = array.array("q", [0])

    def forward(x):
        steps[0] += 1  # <- cpu-state-step-counter
        return x * 0.5 ** (steps[0] // 1000)

    return forward, (rows(device),)


def step_of_ctypes(device):
    step = ctypes.c_long(0)

    def forward(x):
        step.value += 1  # <- cpu-state-step-counter
        return x * 0.5 ** (step.value // 1000)

    return forward, (rows(device),)


def position_in_a_context_of_its_own(device):
    context = contextvars.copy_context()

    def inner(x):
        position.set(position.get() + 1)
        return x * (1 + position.get() // 1000)  # <- cpu-work-in-region

    def forward(x):
        return context.run(inner, x)

    return forward, (rows(device),)


def spawned_generators(device):
    seeds = np.random.SeedSequence(7)

    def forward(x):
        (seed,) = seeds.spawn(1)  # <- rng-frozen-seed
        return x * float(np.random.default_rng(seed).uniform())

    return forward, (rows(device),)


def step_of_a_digest(device):
    digest = hashlib.sha256()

    def forward(x):
        digest.update(b"step")  # <- cpu-state-step-counter
        return x * digest.digest()[0]

    return forward, (rows(device),)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) * (1.0 + float(self.calls // 1000))


def scripted_module_that_counts(device):
    model = torch.jit.script(Scripted().to(device))

    def forward(x):
        return model(x)  # <- control-flow-frozen

    return forward, (rows(device),)


def remembered_key_of_a_counter(device):
    memory = SimpleNamespace(key=None, scale=1.0, calls=0)

    def forward(x):
        memory.calls += 1  # <- cpu-state-step-counter
        key = memory.calls // 1000
        if memory.key is None or memory.key != key:
            memory.key = key
            memory.scale = 0.5**key
        return x * memory.scale

    return forward, (rows(device),)


def remembered_key_is_forgotten(device):
    memory = SimpleNamespace(key=None, scale=1.0, table=None, calls=0)

    def forward(x):
        memory.calls += 1  # <- cpu-state-step-counter
        if memory.calls % 1000 == 0:
            memory.key = None
            memory.scale *= 0.5
        if memory.key != x.shape:
            memory.key = x.shape
            memory.table = torch.full((8,), memory.scale, device=x.device)
        return x * memory.table

    return forward, (rows(device),)


def scale_behind_a_view(device):
    settings = {"step": 0, "scale": 1.0}
    view = MappingProxyType(settings)

    def forward(x):
        settings["step"] += 1  # <- cpu-state-step-counter
        if settings["step"] % 1000 == 0:
            settings["scale"] *= 0.5
        return x * view["scale"]

    return forward, (rows(device),)


def step_in_chained_settings(device):
    settings = collections.ChainMap({}, {"step": 0})

    def forward(x):
        settings["step"] += 1  # <- cpu-state-step-counter
        return x * 0.5 ** (settings["step"] // 1000)

    return forward, (rows(device),)


def follow_the_steps(context):
    context["drop"] = 0.1 * (context["step"] // 600)
    context["step"] += 1  # <- cpu-state-step-counter


class Lent:
    """Lends its context, one item of which follows another."""

    def __init__(self):
        self.context = {"step": 0, "drop": 0.0}

    @contextlib.contextmanager
    def open(self):
        follow_the_steps(self.context)
        yield self.context


def item_of_a_context_that_is_lent(device):
    lent = Lent()

    def forward(x):
        with lent.open() as context:
            return x * context["drop"]

    return forward, (rows(device),)


def loss_read_every_hundredth_step(device):
    weight = torch.ones(8, 8, device=device)
    seen = {"steps": 0}
    losses = []

    def step(x):
        loss = (x @ weight).square().mean()
        seen["steps"] += 1
        if seen["steps"] % 100 == 99:  # <- control-flow-frozen
            losses.append(loss.item())
        return loss

    return step, (rows(device),)


def two_layers_in_a_random_order(device):
    first, second = (nn.Linear(8, 8).to(device) for _ in range(2))

    def forward(x):
        swaps = random.random() < 0.5
        one, other = (second, first) if swaps else (first, second)  # <- control-flow-frozen
        return one(x) - other(x) ** 2

    return forward, (rows(device),)


def tensor_chosen_at_random(device):
    ones, zeros = torch.ones(8, device=device), torch.zeros(8, device=device)

    def forward(x):
        chosen = ones if random.random() < 0.5 else zeros  # <- control-flow-frozen
        return x + chosen

    return forward, (rows(device),)


def counter_that_starts_again(device):
    count = 0

    def forward(x):
        nonlocal count
        count += 1
        if count > 50:
            count = 0
        return x * 2 if count == 1 else x + 1  # <- control-flow-frozen

    return forward, (rows(device),)


def counter_that_will_pass_a_limit(device):
    count = 0

    def forward(x):
        nonlocal count
        count += 1
        return x * 2 if count > 100 else x + 1  # <- control-flow-frozen

    return forward, (rows(device),)


def data_of_a_parameter(device):
    weight = nn.Parameter(rows(device))

    def forward(x):
        y = x * weight
        z = y + weight.square()
        for each in (weight,):
            each.data = each.data * 0.9  # <- metadata-address-changed
        return z

    return forward, (rows(device),)


def data_restored_from_a_copy(device):
    weight = nn.Parameter(rows(device))
    copies = {}

    def forward(x):
        y = x * weight  # <- metadata-address-changed
        for each in (weight,):
            copies[each] = each.data.clone()
            each.data.mul_(0.9)
            each.data = copies[each]
        return y

    return forward, (rows(device),)


def data_of_a_tensor_restored(device):
    scale = rows(device)
    copies = {}

    def forward(x):
        y = x * scale  # <- metadata-address-changed
        copies["scale"] = scale.clone()
        scale.mul_(0.9)
        scale.data = copies["scale"]
        return y

    return forward, (rows(device),)


def memory_set_from_a_copy(device):
    weight = nn.Parameter(rows(device), requires_grad=False)
    copies = {}

    def forward(x):
        y = x * weight
        copies["weight"] = weight.clone()
        weight.mul_(0.9)
        weight.set_(copies["weight"])  # <- metadata-address-changed
        return y

    return forward, (rows(device),)


def tensors_swapped_with_copies(device):
    weight = nn.Parameter(rows(device), requires_grad=False)
    copies = {}

    def forward(x):
        y = x * weight  # <- metadata-address-changed
        copies["weight"] = weight.clone()
        torch.utils.swap_tensors(weight, nn.Parameter(copies["weight"], requires_grad=False))
        return y

    return forward, (rows(device),)


def parameters_from_a_vector(device):
    layer = nn.Linear(8, 2, device=device).requires_grad_(False)

    def forward(x):
        y = layer(x)  # <- metadata-address-changed
        flat = nn.utils.parameters_to_vector(layer.parameters())
        nn.utils.vector_to_parameters(flat * 0.9, layer.parameters())
        return y

    return forward, (rows(device),)


def parameters_from_an_assigned_state_dict(device):
    layer = nn.Linear(8, 2, device=device).requires_grad_(False)

    def forward(x):
        y = layer(x)  # <- metadata-address-changed
        smaller = {name: value * 0.9 for name, value in layer.state_dict().items()}
        layer.load_state_dict(smaller, assign=True)
        return y

    return forward, (rows(device),)


class Swaps:
    def __init__(self, device):
        self.now, self.next = rows(device), rows(device)

    def advance(self):
        self.next.copy_(smoothed(self.now) + self.now)
        self.now, self.next = self.next, self.now  # <- metadata-address-changed


def smoothed(field):
    return field + field.roll(1, 0)


def buffers_change_places(device):
    buffers = Swaps(device)

    def forward():
        buffers.advance()
        return buffers.now * 2

    return forward


def counter_that_chooses_a_batch(device):
    layer = nn.Linear(8, 2, device=device)
    batches, state = [rows(device) for _ in range(3)], {"batch": 0}

    def forward():
        x = batches[state["batch"] % 3]
        state["batch"] += 1  # <- cpu-state-step-counter
        return layer(x)  # <- metadata-address-changed

    return forward


def cycle_that_does_not_come_around(device):
    scales = itertools.cycle((1.0, 2.0, 3.0))

    def forward(x):
        for _ in range(4):
            x = x * next(scales)  # <- python-scalar-frozen
        return x

    return forward, (rows(device),)


def iterator_of_batches(device):
    batches, x = itertools.cycle([rows(device) for _ in range(3)]), rows(device)

    def forward():
        x.copy_(next(batches))  # <- python-side-effects-skipped
        return x * 2

    return forward


def iterator_of_batches_on_the_host(device):
    batches, x = (
        itertools.cycle([torch.full((8,), n).pin_memory() for n in (1.0, 2.0)]),
        rows(device),
    )

    def forward():
        x.copy_(next(batches), non_blocking=True)  # <- python-side-effects-skipped
        return x * 2

    return forward


class Rebinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("u", torch.ones(8))
        self.state = None

    def forward(self, x):
        first = x + self.u
        self.u = first[0]  # <- metadata-address-changed
        if self.state is not None:
            first = first + self.state[0]
        self.state = (first * 2, 1)  # <- metadata-address-changed
        return first


def attribute_and_tuple_are_rebound(device):
    return Rebinds().to(device), (rows(device),)


def clock_that_is_used_later(device):
    def forward(x):
        now = time.monotonic()  # <- cpu-work-in-region
        return x * now

    return forward, (rows(device),)


def weights_of_a_function_are_rebound(device):
    weights = {"a": rows(device), "b": rows(device)}

    def forward(x):
        nonlocal weights
        y = x * weights["a"] + weights["b"]
        weights = {
            key: value * 0.9  # <- metadata-address-changed
            for key, value in weights.items()
        }
        return y

    return forward, (rows(device),)


def _scaled(x, factor):
    return x * factor


def factor_bound_by_a_partial(device):
    calls = 0

    def forward(x):
        nonlocal calls
        calls += 1  # <- cpu-state-step-counter
        scaled = partial(_scaled, factor=0.9 ** (calls // 1000))
        return scaled(x)

    return forward, (rows(device),)


def function_bound_by_a_partial(device):
    calls = 0

    def forward(x):
        nonlocal calls
        calls += 1
        scaled = partial(torch.relu if calls > 1000 else torch.tanh, x)  # <- control-flow-frozen
        return scaled()

    return forward, (rows(device),)


def sums_scattered_into_empty(device):
    groups = torch.arange(8, device=device) % 4

    def forward(x):
        sums = torch.empty(4, device=x.device)  # <- stale-accumulator-or-uninitialized
        sums.scatter_add_(0, groups, x)
        return sums

    return forward, (torch.ones(8, device=device),)


def sums_put_into_empty(device):
    groups = torch.arange(8, device=device) % 4

    def forward(x):
        sums = torch.empty(4, device=x.device)  # <- stale-accumulator-or-uninitialized
        sums.index_put_((groups,), x, accumulate=True)
        return sums

    return forward, (torch.ones(8, device=device),)


def maxima_scattered_into_empty(device):
    groups = torch.arange(8, device=device) % 4

    def forward(x):
        maxima = torch.empty(4, device=x.device)  # <- stale-accumulator-or-uninitialized
        return maxima.scatter_reduce(0, groups, x, "amax")

    return forward, (torch.ones(8, device=device),)


def drawn_by_a_pool(device):
    pool = ThreadPoolExecutor(1)

    def scale(x):
        rare = pool.submit(generator.random).result() < 0.001  # <- rng-frozen-seed
        return x * (2.0 if rare else 1.0)

    return scale, (rows(device),)


def counted_by_a_started_thread(device):
    calls = [0]

    def count(out):
        calls[0] += 1  # <- cpu-state-step-counter
        out.append(1.0 if calls[0] < 10_000 else 0.5)

    def scale(x):
        out = []
        thread = threading.Thread(target=count, args=(out,))
        thread.start()
        thread.join()
        return x * out[0]

    return scale, (rows(device),)


def clock_in_a_queue_of_the_call(device):
    def look(since, answers):
        answers.put(time.monotonic() - since > 3600)

    begun = time.monotonic()

    def act(x):
        answers = queue.SimpleQueue()
        threading.Thread(target=look, args=(begun, answers)).start()
        return x.tanh() if answers.get() else x.relu()  # <- control-flow-frozen

    return act, (rows(device),)


def server_that_draws(device):
    requests, answers = queue.Queue(), queue.Queue()

    def draw(rate):
        return 0.0 if generator.random() < 0.0001 else rate

    def serve():
        while True:
            answers.put(draw(requests.get()))

    threading.Thread(target=serve, daemon=True).start()

    def scale(x):
        requests.put(0.1)
        return x * answers.get()  # <- cpu-work-in-region

    return scale, (rows(device),)


def server_that_remembers(device):
    asked, answered, shared = threading.Event(), threading.Event(), {}

    def serve():
        rate = 1.0
        while True:
            asked.wait()
            asked.clear()
            shared["rate"] = rate
            rate = 1.0 if rate > 0.5 else 2.0
            answered.set()

    threading.Thread(target=serve, daemon=True).start()

    def scale(x):
        asked.set()
        answered.wait()
        answered.clear()
        return x * shared["rate"]  # <- python-scalar-frozen

    return scale, (rows(device),)


def remembered_by_version(device):
    model, memo = nn.Linear(8, 8).to(device).requires_grad_(False), {}

    def forward(x):
        version = x._version  # <- python-scalar-frozen
        if version not in memo:
            memo.clear()
            memo[version] = model(x)
        return memo[version] * 2

    return forward, (rows(device),)


def coroutine_that_keeps_a_tensor(device):
    def differences():
        previous = answer = None
        while True:
            value = yield answer
            answer = value if previous is None else value - previous  # <- metadata-address-changed
            previous = value.clone()

    difference = differences()
    next(difference)
    return (lambda x: difference.send(x * 2)), (rows(device),)


def generator_that_alternates_rarely(device):
    def rates():
        for _ in range(10**6):
            yield 1.0

    rate = rates()
    return (lambda x: x * next(rate)), (rows(device),)  # <- python-scalar-frozen


def generator_that_delegates_to_counting(device):
    def counts():
        n = 0
        while True:
            yield 1.0 if n < 1000 else 0.5
            n += 1

    def delegates():
        yield from counts()

    rate = delegates()
    return (lambda x: x * next(rate)), (rows(device),)  # <- python-scalar-frozen


class CountsInItsGenerator:
    def __init__(self):
        self.n = 0

    def rates(self):
        while True:
            self.n += 1  # <- cpu-state-step-counter
            yield 1.0 if self.n < 1000 else 0.5


def generator_that_counts_in_an_attribute(device):
    rate = CountsInItsGenerator().rates()
    return (lambda x: x * next(rate)), (rows(device),)  # <- python-scalar-frozen


class StacksWhatItHasSeen:
    def __init__(self, device):
        self.seen = [rows(device)]

    def __call__(self, x):
        y = x + torch.stack(self.seen, 1).mean(1)
        self.seen.append(y)  # <- python-side-effects-skipped
        return y


def list_that_grows(device):
    return StacksWhatItHasSeen(device), (rows(device),)


def quantile_of_a_list_that_grows(device):
    seen = []

    def forward(x):
        seen.append(x.sum())  # <- python-side-effects-skipped
        return x * torch.stack(seen).quantile(0.25)

    return forward, (rows(device),)


def points_copied_from_the_host(device):
    engine = torch.quasirandom.SobolEngine(2)

    def forward(x):
        return x.sum() + engine.draw(4).to(device)  # <- cpu-work-in-region # <- h2d-pageable-copy

    return forward, (rows(device),)


class TrainsEverySecondTime(torch.nn.Module):
    def forward(self, x):
        self.train(not self.training)
        y, dropout = x * 2, nn.functional.dropout
        return dropout(y, 0.5, self.training)  # <- control-flow-frozen # <- python-scalar-frozen


def mode_that_changes(device):
    return TrainsEverySecondTime(), (rows(device),)


class Curriculum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.steps = nn.Linear(4, 4), itertools.count()

    def forward(self, x):
        x = x[:, : 4 + next(self.steps)]  # <- python-scalar-frozen
        return self.layer(x).square().mean()


def backward_of_a_length_that_changes(device):
    return Curriculum().to(device), (torch.randn(3, 24, 4, device=device),)


def number_read_from_a_storage(device):
    state, x = rows(device), rows(device)

    def step():
        state.mul_(0.9)
        read = state.untyped_storage().cpu()  # <- sync-d2h-copy
        return x * read[0]  # <- python-scalar-frozen

    return step


def handlers_added_in_each_call(device):
    handlers = {}

    def forward(x):
        handlers.setdefault("scale", []).append(lambda value: value * 0.9)
        for handler in handlers.get("scale", ()):  # <- control-flow-frozen
            x = handler(x)
        return x

    return forward, (rows(device),)


class KeepsTheLast:
    def __init__(self):
        self.before = None

    def __call__(self, x):
        if self.before is not None:
            x = x.lerp(self.before, 0.3)
        self.before = x.detach()  # <- metadata-address-changed
        return x


def object_that_keeps_the_last_output(device):
    mixes = KeepsTheLast()
    return (lambda x: mixes(x * 2)), (rows(device),)


class Level:
    """Has one weight; the next level is another object."""

    def __init__(self, percent):
        self.percent = percent

    def next(self):
        return Level(self.percent - 1)

    def weight(self):
        return self.percent / 100

    def __float__(self):
        return self.percent / 100

    def __call__(self):
        return self.percent / 100


class MovesThroughStages:
    def __init__(self):
        self.stage, self.calls = Level(100), 0

    def move(self):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 1000 == 0:
            self.stage = self.stage.next()


class AsksItsLevel(MovesThroughStages):
    def __call__(self, x):
        self.move()
        return x * self.stage.weight()


class ConvertsItsLevel(MovesThroughStages):
    def __call__(self, x):
        self.move()
        return x * float(self.stage)


class CallsItsLevel(MovesThroughStages):
    def __call__(self, x):
        self.move()
        return x * self.stage()


def stage_whose_method_returns_its_field(device):
    return AsksItsLevel(), (rows(device),)


def stage_that_is_converted(device):
    return ConvertsItsLevel(), (rows(device),)


def stage_that_is_called(device):
    return CallsItsLevel(), (rows(device),)


class ReplacesItsFunction:
    def __init__(self):
        self.calls, self.weight = 0, lambda: 1.0

    def __call__(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 1000 == 0:
            self.weight = lambda: 0.5
        return x * self.weight()


def function_that_is_replaced(device):
    return ReplacesItsFunction(), (rows(device),)


class ShrinksExactly:
    def __init__(self):
        self.share = fractions.Fraction(1)

    def __call__(self, x):
        self.share *= fractions.Fraction(9, 10)  # <- cpu-state-step-counter
        return x * float(self.share)


def fraction_that_shrinks(device):
    return ShrinksExactly(), (rows(device),)


def gains_that_rotate(device):
    gains = collections.deque([0.5, 1.0, 2.0])

    def fn(x):
        gains.rotate(1)  # <- cpu-state-step-counter
        return x * gains[0]

    return fn, (rows(device),)


def list_whose_first_item_moves_to_the_end(device):
    gains = [0.5, 1.0, 2.0]

    def fn(x):
        gains.append(gains.pop(0))  # <- cpu-state-step-counter
        return x * gains[0]

    return fn, (rows(device),)


def flag_of_a_signal(device):
    flags = {"stop": False}

    def handle(_number, _frame):
        flags["stop"] = True

    signal.signal(signal.SIGUSR2, handle)

    def fn(x):
        if flags["stop"]:  # <- control-flow-frozen
            x = x * 0
        return x + 1

    return fn, (rows(device),)


def event_set_by_a_signal(device):
    stop = threading.Event()
    signal.signal(signal.SIGUSR2, lambda *_: stop.set())

    def fn(x):
        if stop.is_set():  # <- control-flow-frozen
            x = x * 0
        return x + 1

    return fn, (rows(device),)


def event_set_by_a_timer(device):
    stop = threading.Event()
    timer = threading.Timer(300, stop.set)
    timer.daemon = True
    timer.start()

    def fn(x):
        if stop.is_set():  # <- control-flow-frozen
            x = x * 0
        return x + 1

    return fn, (rows(device),)


def event_set_after_many_calls(device):
    calls, warm = itertools.count(), threading.Event()

    def fn(x):
        if warm.is_set():  # <- control-flow-frozen
            x = x * 2
        if next(calls) > 1000:
            warm.set()
        return x + 1

    return fn, (rows(device),)


def number_in_a_database(device):
    base = sqlite3.connect(":memory:")
    base.execute("create table runs (n integer)")
    base.execute("insert into runs values (0)")

    def fn(x):
        base.execute("update runs set n = n + 1")
        (steps,) = base.execute("select n from runs").fetchone()  # <- cpu-work-in-region
        return x * 0.5 ** (steps // 1000)

    return fn, (rows(device),)


def number_that_is_read_and_used(device):
    count = torch.ones((), device=device)

    def fn(x):
        count.add_(1)
        steps = count.item()  # <- sync-item
        return (x + 1) * steps

    return fn, (rows(device),)


def number_that_an_op_reads(device):
    rate = torch.ones((), device=device)

    def fn(x):
        rate.mul_(0.9)
        return x.clone().add_(x, alpha=rate)  # <- sync-item

    return fn, (rows(device),)


def branch_that_is_read(device):
    count = torch.ones((), device=device)

    def fn(x):
        count.add_(1)
        if count % 2 == 0:  # <- sync-truth-value
            x = x * 2
        return x + 1

    return fn, (rows(device),)


def teacher_that_autograd_follows(device):
    student, teacher = (nn.Linear(8, 8, device=device) for _ in range(2))
    teacher.requires_grad_(requires_grad=False)

    def fn(x):
        student.zero_grad()
        loss = (student(x) - teacher(x)).square().mean()  # <- control-flow-frozen
        loss.backward()
        teacher.weight.lerp_(student.weight, 0.1)
        return loss.detach()

    return fn, (rows(device),)


class ReturnsItsScale:
    def __init__(self):
        self.calls = 0

    def pair(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        return x + 1, 1.0 + self.calls // 1000


def number_returned_beside_a_tensor(device):
    model = ReturnsItsScale()

    def fn(x):
        loss, scale = model.pair(x)
        return loss * scale

    return fn, (rows(device),)


@dataclass
class Scaled:
    x: torch.Tensor
    scale: float

    def result(self):
        return self.x * self.scale


def number_in_an_object_with_a_tensor(device):
    calls = [0]

    def fn(x):
        calls[0] += 1  # <- cpu-state-step-counter
        return Scaled(x, 1.0 + calls[0] // 1000).result()

    return fn, (rows(device),)


def tensor_chosen_beside_another(device):
    weights, calls = [rows(device), rows(device) * 2], [0]

    def choose(x):
        return x, weights[calls[0] // 1000 % 2]

    def fn(x):
        calls[0] += 1  # <- cpu-state-step-counter
        y, weight = choose(x)
        return y * weight

    return fn, (rows(device),)


def loop_over_a_range_that_grows(device):
    calls = [0]

    def fn(x):
        calls[0] += 1
        rounds = range(1 + calls[0] // 1000)
        for _ in rounds:  # <- control-flow-frozen
            x = x * 2
        return x

    return fn, (rows(device),)


def tensor_chosen_in_a_call(device):
    weights, calls = [rows(device), rows(device) * 2], [0]

    def choose(x):
        return x, weights[calls[0] // 1000 % 2]

    def fn(x):
        calls[0] += 1  # <- cpu-state-step-counter
        return x * choose(x)[1]

    return fn, (rows(device),)


def number_taken_out_of_a_call(device):
    calls = [0]

    def scaled(x):
        calls[0] += 1  # <- cpu-state-step-counter
        return x, 1.0 + calls[0] // 1000

    def fn(x):
        return x * scaled(x)[1]

    return fn, (rows(device),)


def layer_chosen_by_a_function_of_numbers(device):
    layers, calls = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device), [1]

    def fn(x):
        calls[0] += 1
        return layers[int(math.log(calls[0])) % 3](x)  # <- control-flow-frozen

    return fn, (rows(device),)


def layer_chosen_out_of_a_list_of_numbers(device):
    layers, calls = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device), [1]

    def fn(x):
        calls[0] += 1
        scores = [calls[0] // 1000, 1]
        return layers[max(scores) % 3](x)  # <- control-flow-frozen

    return fn, (rows(device),)


class KnowsItsTrainer(nn.Module):
    def __init__(self, trainer):
        super().__init__()
        # A proxy says that it is a module, and is none.
        self.__dict__["trainer"] = weakref.proxy(trainer)

    def forward(self, x):
        return x * 2 if self.trainer.step > 1000 else x + 1  # <- control-flow-frozen


def branch_of_an_owner_behind_a_proxy(device):
    trainer = nn.Module()
    trainer.step, layer = 0, KnowsItsTrainer(trainer)

    def fn(x):
        trainer.step += 1
        return layer(x)

    return fn, (rows(device),)


def key_that_is_stored_later(device):
    live = {"first": {"calls": 0}}

    def fn(x):
        live["first"]["calls"] += 1
        if live["first"]["calls"] == 1000:
            live["second"] = {"calls": 0}
        return x * 2 if "second" in live else x + 1  # <- control-flow-frozen

    return fn, (rows(device),)


def value_that_is_none_until_later(device):
    state = {"best": None, "calls": 0}

    def fn(x):
        state["calls"] += 1
        if state["calls"] == 1000:
            state["best"] = 1.0
        return x + 1 if state["best"] is None else x * 2  # <- control-flow-frozen

    return fn, (rows(device),)


def number_in_a_dict_of_a_dict(device):
    states = {}

    def fn(x):
        state = states.setdefault("x", {})
        state["calls"] = state.get("calls", 0) + 1  # <- cpu-state-step-counter
        return x * (1 + state["calls"] // 1000)

    return fn, (rows(device),)


def number_in_a_dict_that_is_merged_and_put_back(device):
    states = {}

    def fn(x):
        state = states.get("x", {"calls": 0})
        state |= {"calls": state["calls"] + 1}
        states["x"] = state
        return x * (1 + state["calls"] // 1000)  # <- python-scalar-frozen

    return fn, (rows(device),)


def number_in_a_dict_that_is_updated(device):
    state = {"calls": 0}

    def fn(x):
        state.update(calls=state["calls"] + 1)
        return x * (1 + state["calls"] // 1000)  # <- python-scalar-frozen

    return fn, (rows(device),)


def dict_that_is_replaced_now_and_then(device):
    states, calls = {"x": {"scale": 1.0}}, [0]

    def fn(x):
        calls[0] += 1  # <- cpu-state-step-counter
        state = states.get("x")
        if calls[0] % 1000 == 0:
            state = {"scale": state["scale"] * 0.5}
        states["x"] = state
        return x * states["x"]["scale"]

    return fn, (rows(device),)


def hook_in_each_call(device):
    lin = nn.Linear(8, 1, device=device)

    def step(x):
        lin.weight.register_hook(lambda g: g * 0.7)
        loss = lin(x).square().mean()
        lin.zero_grad()
        loss.backward()  # <- control-flow-frozen
        with torch.no_grad():
            lin.weight.sub_(lin.weight.grad, alpha=0.1)
        return loss.detach()

    return step, (rows(device),)


def value_that_is_looked_for(device):
    table = {"a": 1}

    def fn(x):
        table["a"] += 1
        if 9000 in table.values():  # <- control-flow-frozen
            x = x * 2
        return x + 1

    return fn, (rows(device),)


def item_that_is_looked_for(device):
    table = {"a": 1}

    def fn(x):
        table["a"] += 1
        if ("a", 9000) in sorted(table.items()):  # <- control-flow-frozen
            x = x * 2
        return x + 1

    return fn, (rows(device),)


def pair_that_is_looked_for_in_a_list(device):
    pairs = [("a", 0)]

    def fn(x):
        pairs[0] = ("a", pairs[0][1] + 1)
        if ("a", 9000) in pairs:  # <- control-flow-frozen
            x = x * 2
        return x + 1

    return fn, (rows(device),)


def slots_of_a_bytearray(device):
    taken, buffer = bytearray(8), rows(device)

    def fn(x):
        slot = taken.find(0)
        if slot < 0:
            taken[:] = bytes(8)
            slot = 0
        taken[slot] = 1  # <- cpu-state-step-counter
        return buffer[slot % 4] + x

    return fn, (rows(device),)


def slots_of_a_list_that_is_cleared(device):
    taken, buffer = [], rows(device)

    def fn(x):
        if len(taken) == 4:
            taken.clear()
        taken.append(1)  # <- cpu-state-step-counter
        return buffer[len(taken) - 1] + x

    return fn, (rows(device),)


class SlotsInADict:
    def __init__(self, device):
        self.taken, self.buffer = {}, rows(device)

    def __call__(self, x):
        if len(self.taken) == 4:
            self.taken = {}
        self.taken[len(self.taken)] = 1  # <- python-side-effects-skipped
        return self.buffer[len(self.taken) - 1] + x


def slots_of_a_dict_that_is_replaced(device):
    return SlotsInADict(device), (rows(device),)


def teacher_is_copied_anew(device):
    student = nn.Linear(8, 8).to(device)
    nets = {"teacher": student}
    teacher = student

    def step(x):
        nonlocal teacher
        y = teacher(x)  # <- metadata-address-changed
        y = y + nets["teacher"].forward(x)  # <- metadata-address-changed
        teacher = copy.deepcopy(student)
        nets["teacher"] = copy.deepcopy(student)
        return y

    return torch.no_grad()(step), (rows(device),)


class TrainerOfACopy:
    def __init__(self, device):
        self.student = nn.Linear(8, 8).to(device)
        self.teacher = copy.deepcopy(self.student)

    @torch.no_grad()
    def step(self, x):
        y = self.teacher(x)  # <- metadata-address-changed
        self.teacher = copy.deepcopy(self.student)
        return y


def teacher_of_a_trainer_is_copied_anew(device):
    trainer = TrainerOfACopy(device)
    return trainer.step, (rows(device),)


def heads_train_in_turn(device):
    heads = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("left", "right")}).to(device)
    opt = torch.optim.SGD(heads.parameters(), 0.1)
    x, side = rows(device), "left"

    def step():
        nonlocal side
        side = "right" if side == "left" else "left"
        opt.zero_grad()
        heads[side](x).sum().backward()  # <- control-flow-frozen
        opt.step()

    return step


def weight_gets_other_memory(device):
    weight = torch.ones(4, 4, device=device)
    x = torch.ones(4, device=device)

    def step():
        normed = weight / weight.norm()  # <- metadata-address-changed
        weight.data = normed
        return x @ weight

    return step


def outputs_wait_in_a_queue(device):
    waiting = collections.deque(torch.zeros(4, device=device) for _ in range(3))
    x = torch.ones(4, device=device)

    def step():
        waiting.append(x * 2)
        return waiting.popleft() + 1  # <- metadata-address-changed

    return step


def width_drawn_by_torch(device):
    weight = torch.ones(64, 4, device=device)

    def step():
        width = int(torch.randint(1, 64, ()))  # <- rng-frozen-seed
        return weight[:width].sum()

    return step


def snapshots_of_weights_in_a_list(device):
    weights = [rows(device), rows(device, 8)]
    snapshots = []

    def average(x):
        snapshots.append([w.clone() for w in weights])  # <- python-side-effects-skipped
        return x + torch.stack([each[0] for each in snapshots]).mean(0)

    return average, (rows(device),)


def bound_of_a_draw_grows(device):
    state = {"known": 16}

    def draw(x):
        state["known"] += 1  # <- cpu-state-step-counter
        return x[torch.randint(state["known"], (4,), device=x.device) % 4]

    return draw, (rows(device),)


class ScaledModule(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale


def scaled_module_is_made_of_a_counter(device):
    net, steps = ScaledModule(1.0), 0

    def step(x):
        nonlocal net, steps
        y = net(x)
        steps += 1  # <- cpu-state-step-counter
        net = ScaledModule(0.5 ** (steps // 1000))
        return y

    return step, (rows(device),)


def function_is_made_of_a_counter(device):
    def scaled_by(scale):
        return lambda x: x * scale

    scaled, steps = scaled_by(1.0), 0

    def step(x):
        nonlocal scaled, steps
        y = scaled(x)  # <- control-flow-frozen
        steps += 1
        scaled = scaled_by(0.5 ** (steps // 1000))
        return y

    return step, (rows(device),)


class Bounded(nn.Module):
    """Divides by its largest row norm, which is kept, and removed now and then."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8).requires_grad_(False)
        self.calls, self.cache = 0, {}

    @functools.cached_property
    def bound(self):
        return self.linear.weight.norm(dim=1).amax()

    def kept(self):
        if "bound" not in self.cache:
            self.cache["bound"] = self.linear.weight.norm(dim=1).amax()
        return self.cache["bound"]

    def grow(self):
        with torch.no_grad():
            self.linear.weight.mul_(1.01)


class PopsItsAttribute(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            self.__dict__.pop("bound", None)
        self.grow()
        return self.linear(x) / self.bound


class PopsItOfVars(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            vars(self).pop("bound", None)
        self.grow()
        return self.linear(x) / self.bound


class DeletesItsAttribute(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            del self.bound
        self.grow()
        return self.linear(x) / self.bound


class DeletesItByName(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            delattr(self, "bound")
        self.grow()
        return self.linear(x) / self.bound


class ClearsItsCache(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            self.cache.clear()
        self.grow()
        return self.linear(x) / self.kept()


class DeletesAnItem(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            del self.cache["bound"]
        self.grow()
        return self.linear(x) / self.kept()


class PopsAnItem(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            self.cache.pop("bound")
        self.grow()
        return self.linear(x) / self.kept()


class DeletesSomeItem(Bounded):
    def forward(self, x):
        self.calls += 1  # <- cpu-state-step-counter
        if self.calls % 16 == 0:
            for key in list(self.cache):
                del self.cache[key]
        self.grow()
        return self.linear(x) / self.kept()


def attribute_popped_now_and_then(device):
    return PopsItsAttribute().to(device), (rows(device),)


def attribute_popped_of_vars(device):
    return PopsItOfVars().to(device), (rows(device),)


def attribute_deleted_now_and_then(device):
    return DeletesItsAttribute().to(device), (rows(device),)


def attribute_deleted_by_name(device):
    return DeletesItByName().to(device), (rows(device),)


def cache_cleared_now_and_then(device):
    return ClearsItsCache().to(device), (rows(device),)


def item_deleted_now_and_then(device):
    return DeletesAnItem().to(device), (rows(device),)


def item_popped_now_and_then(device):
    return PopsAnItem().to(device), (rows(device),)


def some_item_deleted_now_and_then(device):
    return DeletesSomeItem().to(device), (rows(device),)


class Metronome:
    def __init__(self, device):
        self.beat = fractions.Fraction(0)
        self.time = rows(device)

    def __call__(self, x):
        self.beat = (self.beat + fractions.Fraction(1, 3)) % 4  # <- cpu-state-step-counter
        accent = 1.0 if self.beat.denominator == 1 else 0.5
        return accent * torch.sin(self.time + float(self.beat) * x)


def beat_of_a_metronome(device):
    return Metronome(device), (rows(device),)


class Irrigates(nn.Module):
    def __init__(self):
        super().__init__()
        self.valves = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).requires_grad_(False)
        self.agenda = [(3, 0), (4, 1), (7, 2)]

    def forward(self, x):
        when, valve = heapq.heappop(self.agenda)
        heapq.heappush(self.agenda, (when + 3, valve))
        return self.valves[valve](x)  # <- control-flow-frozen


def agenda_chooses_a_layer(device):
    return Irrigates().to(device), (rows(device),)


class DelaysByName(nn.Module):
    def __init__(self, device):
        super().__init__()
        for k in range(3):
            setattr(self, f"tap{k}", rows(device))

    def forward(self, x):
        for k in (2, 1):
            setattr(self, f"tap{k}", getattr(self, f"tap{k - 1}"))
        self.tap0 = x.clone()
        return x + self.tap1 + self.tap2  # <- metadata-address-changed


def taps_are_moved_by_name(device):
    return DelaysByName(device), (rows(device),)


class Requantizes(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.weight = rows(device, 8)
        self.steps, self.version, self.value, self.kept = 0, None, None, None

    def forward(self, x):
        self.steps += 1
        return x * self.quantized()


class RequantizesForEachEpoch(Requantizes):
    def quantized(self):
        epoch = self.steps // 10
        if self.version == epoch and self.value is not None:  # <- control-flow-frozen
            return self.value
        self.version = epoch
        self.value = self.weight.round()
        return self.value


def compares_with_the_last_epoch(device):
    return RequantizesForEachEpoch(device), (rows(device),)


class RequantizesAtTimes(Requantizes):
    def quantized(self):
        if self.value is None or self.steps % 100 == 0:  # <- control-flow-frozen
            self.value = self.weight.round()
        return self.value


def computes_again_at_times(device):
    return RequantizesAtTimes(device), (rows(device),)


class RequantizesWhenForgotten(Requantizes):
    def quantized(self):
        if self.steps % 10 == 0:
            self.version = None
        if self.value is None or self.version != self.weight._version:  # <- control-flow-frozen
            self.version = self.weight._version
            self.value = self.weight.round()
        return self.value


def forgets_the_version_at_times(device):
    return RequantizesWhenForgotten(device), (rows(device),)


class RequantizesByAPair(Requantizes):
    def quantized(self):
        epoch = self.steps // 10
        if self.kept is None or self.kept[0] != epoch:
            self.kept = (epoch, self.weight.round())
        return self.kept[1]

    def forward(self, x):
        self.steps += 1  # <- cpu-state-step-counter
        return x * self.quantized()


def compares_with_an_epoch_in_a_tuple(device):
    return RequantizesByAPair(device), (rows(device),)


class RequantizesIfCounted(Requantizes):
    def quantized(self):
        if random.random() < 0.001:
            self.steps += 1
        if self.value is None or self.version != self.steps:  # <- control-flow-frozen
            self.version = self.steps
            self.value = self.weight.round()
        return self.value

    def forward(self, x):
        return x * self.quantized()


def counts_at_times(device):
    return RequantizesIfCounted(device), (rows(device),)


def average_of_all_batches(device):
    norm = nn.BatchNorm1d(8, momentum=None).to(device)

    def forward(x):
        return norm(x)  # <- hidden-sync-in-stock-module

    return forward, (rows(device),)


def momentum_that_decays(device):
    norm = nn.BatchNorm1d(8).to(device)

    def forward(x):
        norm.momentum *= 0.9  # <- cpu-state-step-counter
        return norm(x)  # <- python-scalar-frozen

    return forward, (rows(device),)


class Positions:
    def __init__(self):
        self.at, self.limit, self.wraps = 0, 100, False

    def __call__(self, x):
        if self.at >= self.limit and self.wraps:
            self.at = self.limit - 2
        self.at += 1  # <- cpu-state-step-counter
        return x * self.at


def position_that_never_wraps(device):
    return Positions(), (rows(device),)


def _late(device, run):
    """What runs differently once in many calls."""
    calls = {"n": 0}
    return functools.partial(run, calls), (rows(device),)


def precision_is_chosen_late(device):
    weight, half, whole = torch.randn(8, 8, device=device), torch.bfloat16, contextlib.nullcontext()

    def run(calls, x):
        calls["n"] += 1
        with torch.autocast("cuda", half) if calls["n"] > 40 else whole:  # <- control-flow-frozen
            return x @ weight

    return _late(device, run)


def gradient_is_dropped_late(device):
    weight = nn.Parameter(torch.randn(8, device=device))
    weight.grad = torch.zeros_like(weight)

    def run(calls, x):
        calls["n"] += 1
        if calls["n"] > 40:  # <- control-flow-frozen
            weight.grad = None
        loss = (x * weight).sum()
        loss.backward()
        return loss.detach()

    return _late(device, run)


def dropout_ends_late(device):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to(device)

    def run(calls, x):
        calls["n"] += 1  # <- cpu-state-step-counter
        layer.train(calls["n"] < 40)
        return layer(x)

    return _late(device, run)


def layers_are_evaluated_late(device):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to(device)

    def run(calls, x):
        calls["n"] += 1
        if calls["n"] > 40:  # <- control-flow-frozen
            layer.eval()
        return layer(x)

    return _late(device, run)


def parameter_is_frozen_late(device):
    first, second = (nn.Parameter(torch.randn(8, device=device)) for _ in range(2))

    def run(calls, x):
        calls["n"] += 1  # <- cpu-state-step-counter
        first.requires_grad_(calls["n"] < 40)
        return (x * first).sum() + (x * second).sum()

    return _late(device, run)


def input_is_cast_late(device):
    weight = torch.randn(8, 8, device=device)

    def run(calls, x):
        calls["n"] += 1
        x = x.half() if calls["n"] > 40 else x.float()  # <- control-flow-frozen
        return x.float() @ weight

    return _late(device, run)


def _rows(device, count=2):
    return [{"weight": rows(device), "calls": 0} for _ in range(count)]


def count_in_rows_that_are_looped_over(device):
    kept = _rows(device)

    def run(x):
        for row in kept:
            row["calls"] += 1  # <- cpu-state-step-counter
            x = x * (1 + row["calls"] // 100)
        return x

    return run, (rows(device),)


def count_in_rows_by_index(device):
    kept = _rows(device)

    def run(x):
        for i in range(2):
            kept[i]["calls"] += 1  # <- cpu-state-step-counter
            x = x * (1 + kept[i]["calls"] // 100)
        return x

    return run, (rows(device),)


def rows_change_places(device):
    kept = _rows(device)

    def run(x):
        kept.append(kept.pop(0))
        for row in kept:
            x = x * row["weight"] + 1  # <- metadata-address-changed
        return x

    return run, (rows(device),)


def rows_with_numbers_are_reversed(device):
    kept = [{"gain": 1.0}, {"gain": 2.0}]

    def run(x):
        kept.reverse()  # <- python-side-effects-skipped
        for row in kept:  # <- control-flow-frozen
            x = x * row["gain"] + 1
        return x

    return run, (rows(device),)


def list_in_a_row_grows(device):
    kept = [{"parts": []}]

    def run(x):
        kept[0]["parts"].append(1)
        for row in kept:
            for _ in row["parts"]:  # <- control-flow-frozen
                x = x * 1.5
        return x

    return run, (rows(device),)


def changed_in_place_behind_and(device):
    """The op runs in none of the first calls."""
    calls, x = {"n": 0}, torch.ones(4, device=device)

    def step(y):
        calls["n"] += 1
        calls["n"] > 40 and x.add_(1)  # <- control-flow-frozen
        return x * y

    return step, (torch.ones(4, device=device),)


def changed_in_place_behind_or(device):
    calls, x = {"n": 0}, torch.ones(4, device=device)

    def step(y):
        calls["n"] += 1
        _ = calls["n"] < 40 or y.mul_(0.5)  # <- control-flow-frozen
        return x * y

    return step, (torch.ones(4, device=device),)


class Finished(Exception):
    pass


def raised_to_leave_a_block(device):
    """The exception is raised in none of the first calls."""
    calls = {"n": 0}

    def step(x):
        calls["n"] += 1
        try:
            if calls["n"] > 40:  # <- control-flow-frozen
                raise Finished("warm")
            x = x * 0.5
        except Finished:
            x = x * 2
        return x

    return step, (torch.ones(4, device=device),)


def raised_and_caught_with_others(device):
    calls = {"n": 0}

    def step(x):
        calls["n"] += 1
        try:
            assert x.dim() == 1
            if calls["n"] % 50 == 49:  # <- control-flow-frozen
                raise StopIteration
        except (KeyError, StopIteration):
            x = x + 1
        return x * 3

    return step, (torch.ones(4, device=device),)


def hook_that_is_registered_late(device):
    calls, lin = {"n": 0}, nn.Linear(4, 4).to(device)

    def double(module, args, out):
        return out * 2

    def step(x):
        calls["n"] += 1
        if calls["n"] == 40:  # <- control-flow-frozen
            lin.register_forward_hook(double)
        return lin(x)

    return step, (torch.ones(2, 4, device=device),)


def hook_of_a_gradient_that_is_registered_late(device):
    calls, handles, lin = {"n": 0}, [], nn.Linear(4, 4).to(device)

    def step(x):
        calls["n"] += 1
        if calls["n"] > 40 and not handles:  # <- control-flow-frozen
            handles.append(lin.weight.register_hook(lambda gradient: gradient * 0.5))
        return lin(x)

    return step, (torch.ones(2, 4, device=device),)


def count_of_a_name_decides(device):
    counts = {"a": 0, "b": 0}
    w = {"a": torch.ones(4, device=device), "b": torch.full((4,), 2.0, device=device)}

    def step(x):
        for name in counts:
            if counts[name] < 40:  # <- control-flow-frozen
                x = x * w[name]
            counts[name] += 1
        return x

    return step, (torch.ones(4, device=device),)


def names_in_the_order_of_their_counts(device):
    counts = {"a": 0, "b": 0}
    w = {"a": torch.ones(4, device=device), "b": torch.full((4,), 2.0, device=device)}

    def step(x):
        for name in sorted(counts, key=counts.get):
            x = x * w[name] + 1  # <- python-scalar-frozen
        counts["a"] += 1
        return x

    return step, (torch.ones(4, device=device),)


def key_that_is_added_late(device):
    history = {}
    n = [0]

    def step(x):
        n[0] += 1
        x = x + 1
        if n[0] % 50 == 0:
            history[n[0]] = 1
        for _k in history:  # <- control-flow-frozen
            x = x * 2
        return x

    return step, (torch.ones(4, device=device),)


def gains_that_fall_in_a_loop_over_them(device):
    gains = {"a": 1.0, "b": 2.0}

    def step(x):
        for k in gains:
            x = x * gains[k]
            gains[k] *= 0.999  # <- python-side-effects-skipped
        return x

    return step, (torch.ones(4, device=device),)


def counts_of_items_decide(device):
    gains = {"a": 0, "b": 0}

    def step(x):
        for v in gains.values():
            if v < 50:  # <- control-flow-frozen
                x = x + 1
        for k in gains:
            gains[k] += 1
        return x

    return step, (torch.ones(4, device=device),)


def counter_gets_a_key_late(device):
    seen = collections.Counter()
    n = [0]

    def step(x):
        n[0] += 1
        seen[n[0] // 40] += 1
        for _k in seen:  # <- control-flow-frozen
            x = x + 1
        return x

    return step, (torch.ones(4, device=device),)


def cache_grows_by_cat(device):
    keys = []

    def step(x):
        if not keys:
            keys.append(x)
        else:
            keys[0] = torch.cat([keys[0], x])  # <- metadata-address-changed
        return keys[0].sum(0)

    return step, (torch.ones(1, 4, device=device),)


def hook_that_is_removed_late(device):
    calls, lin = {"n": 0}, nn.Linear(4, 4).to(device)
    handle = lin.register_forward_hook(lambda module, args, out: out * 0.5)

    def step(x):
        calls["n"] += 1
        if calls["n"] == 45:  # <- control-flow-frozen
            handle.remove()
        return lin(x)

    return step, (torch.ones(2, 4, device=device),)


def repeats_that_end(device):
    rates = itertools.repeat(0.9, 44)

    def step(x):
        return x * next(rates, 0.5)  # <- python-scalar-frozen

    return step, (torch.ones(4, device=device),)


_phase = contextvars.ContextVar("phase", default=1.0)


def context_variable_that_is_set_late(device):
    calls = {"n": 0}

    def step(x):
        calls["n"] += 1  # <- cpu-state-step-counter
        _phase.set(1.0 if calls["n"] < 40 else 0.5)
        return x * _phase.get()

    return step, (torch.ones(4, device=device),)


@functools.cache
def _window(width, size, where):
    return torch.arange(size, device=where) <= width


def mask_of_a_cached_function(device):
    calls = itertools.count()

    def step(x):
        mask = _window(next(calls) // 48, x.shape[0], x.device)
        return x * mask  # <- python-scalar-frozen

    return step, (torch.ones(8, device=device),)


class Spent(Exception):
    pass


def _spend(budget):
    budget["left"] -= 1
    if budget["left"] < 0:  # <- control-flow-frozen
        raise Spent


def exception_of_a_helper(device):
    budget = {"left": 48}

    def step(x):
        try:
            _spend(budget)
            x = x.exp()
        except Spent:
            x = x * 2
        return x

    return step, (torch.ones(4, device=device),)


def exception_of_a_helper_that_ends_the_call(device):
    budget = {"left": 48}

    def step(x):
        try:
            _spend(budget)
        except Spent:
            return x * 2
        return x + 1

    return step, (torch.ones(4, device=device),)


def assertion_that_is_handled(device):
    calls = {"n": 0}

    def step(x):
        calls["n"] += 1
        try:
            assert calls["n"] < 48  # <- control-flow-frozen
        except AssertionError:
            return x * 2
        return x + 1

    return step, (torch.ones(4, device=device),)


def number_that_a_handler_may_replace(device):
    rates, calls = [1.0] * 40 + [0.5], itertools.count()

    def step(x):
        try:
            rate = rates[next(calls)]
        except IndexError:
            rate = 0.1
        return x * rate  # <- python-scalar-frozen

    return step, (torch.ones(4, device=device),)


def count_by_a_computed_name_beside_its_reset(device):
    tally, state = {"good": 0, "bad": 0}, {"scale": 1.0}

    def step(x, kind="good"):
        tally[kind] += 1  # <- cpu-state-step-counter
        if tally["good"] == 50:
            tally["good"] = 0
            state["scale"] *= 2.0
        return x * state["scale"]

    return step, (torch.ones(4, device=device),)


def warmup_that_goes_on(device):
    calls = {"n": 50}

    def step(x):
        calls["n"] += 1  # <- cpu-state-step-counter
        return x * min(1.0, calls["n"] // 100 / 10)

    return step, (torch.ones(4, device=device),)


class Gauge:
    def __init__(self, gain):
        self.gain = gain

    def factor(self):
        return self.gain * 2

    def scale(self, x):
        return x * self.factor()  # <- python-scalar-frozen


class FlatGauge(Gauge):
    def factor(self):
        return 1.0


class TwoGauges:
    def __init__(self, now, old):
        self.now, self.old = now, old

    def __call__(self, x):
        y = self.now.scale(x)  # <- control-flow-frozen
        self.now, self.old = self.old, self.now
        return y


def objects_of_one_class_are_exchanged(device):
    return TwoGauges(Gauge(2.0), Gauge(3.0)), (torch.ones(4, device=device),)


def objects_of_two_classes_are_exchanged(device):
    return TwoGauges(Gauge(2.0), FlatGauge(2.0)), (torch.ones(4, device=device),)
