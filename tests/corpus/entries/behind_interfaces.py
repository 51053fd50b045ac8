"""State that a reader of the call sees only behind an interface of Python."""

import bisect
import collections
import contextlib
import copy
import functools
import gc
import inspect
import itertools
import logging
import operator
import os
import random
import string
import sys
import time
import types
import warnings
import weakref
from dataclasses import dataclass, field

import torch
from torch import nn

log = logging.getLogger(__name__)


def _controller(target):
    """A coroutine: each size that is sent to it makes it answer with a gain."""
    error = 0.0
    answer = None
    while True:
        size = yield answer
        error = 0.9 * error + (target - size)
        answer = 1.0 + 0.01 * error


def gain_from_a_coroutine(device):
    controller = _controller(16)
    next(controller)

    def f(x):
        gain = controller.send(x.shape[0])  # guilty: the same
        return x * gain  # guilty: the coroutine remembers an error that accumulates

    return f, (torch.randn(8, device=device),)


def decay_by_accumulate(device):
    decays = itertools.accumulate(itertools.repeat(0.9), operator.mul)

    def f(x):
        return x * next(decays)  # guilty: each call takes the next power

    return f, (torch.randn(8, device=device),)


class Stage(nn.Module):
    """A layer that looks at its pipeline's clock through a weak proxy."""

    def __init__(self, pipeline, device):
        super().__init__()
        self.__dict__["pipeline"] = weakref.proxy(pipeline)  # not a child
        self.linear = nn.Linear(8, 8, device=device)

    @property
    def strength(self):
        return 1.0 / (1.0 + self.pipeline.ticks)

    def forward(self, x):
        return self.linear(x) * self.strength  # guilty: the pipeline's clock ticks


class Pipeline(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.ticks = 0
        self.stage = Stage(self, device)

    @torch.no_grad()
    def forward(self, x):
        y = self.stage(x)
        self.ticks += 1  # guilty: the same
        return y


def layer_with_a_proxy_of_its_owner(device):
    return Pipeline(device), (torch.randn(2, 8, device=device),)


class CosineClock:
    def __init__(self, seconds):
        self.started, self.seconds = time.monotonic(), seconds

    @property
    def fraction(self):
        return min(1.0, (time.monotonic() - self.started) / self.seconds)  # guilty: the same


class Budgeted:
    """Anneals by the time that has gone by, as budgeted training does."""

    def __init__(self):
        self.clock = CosineClock(3600.0)

    def __call__(self, x):
        done = operator.attrgetter("clock.fraction")(self)
        return x * (1.0 - done)  # guilty: the time that had gone by at capture


def annealed_by_a_budget_of_time(device):
    return Budgeted(), (torch.randn(8, device=device),)


class Table:
    @functools.lru_cache(maxsize=1)  # noqa: B019
    def rate(self, step):
        return 0.1 / (1 + step) ** 0.5


def rate_of_a_cache_with_one_place(device):
    table, counter = Table(), itertools.count()
    weight = torch.ones(8, device=device)

    def step(grad):
        weight.sub_(grad, alpha=table.rate(next(counter)))  # guilty: the step's own rate
        return weight.clone()

    return step, (torch.randn(8, device=device),)


class Meter:
    def __init__(self):
        self.total = 0.0

    def __iadd__(self, value):
        self.total = 0.5 * self.total + value  # guilty: the same
        return self

    def __float__(self):
        return self.total


def meter_with_an_operator(device):
    meter = Meter()

    def f(x):
        nonlocal meter
        meter += x.numel()  # guilty: the same
        return x / float(meter)  # guilty: a moving average of the host

    return f, (torch.randn(8, device=device),)


def _cooled(x, temperature=1.0):
    return torch.softmax(x / temperature, dim=-1)  # guilty: the default of this call


def default_is_replaced(device):
    def f(x):
        y = _cooled(x)
        _cooled.__defaults__ = (_cooled.__defaults__[0] * 0.95,)  # guilty: the same
        return y

    return f, (torch.randn(2, 8, device=device),)


def formula_is_evaluated(device):
    names = {"t": 0}
    formula = compile("1 / (1 + 0.1 * t)", "formula", "eval")

    def f(x):
        names["t"] += 1  # guilty: the same
        return x * eval(formula, names)  # guilty: the formula's t counts the calls

    return f, (torch.randn(8, device=device),)


class Alternating(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.heads = nn.ModuleDict(
            {"phase_0": nn.Linear(8, 4, device=device), "phase_1": nn.Linear(8, 4, device=device)}
        )
        self.calls = 0

    @torch.no_grad()
    def forward(self, x):
        head = self.heads[f"phase_{self.calls % 2}"]  # guilty: the same
        self.calls += 1  # guilty: the same
        return head(x)  # guilty: the name of the head is made from a counter


def head_by_a_formatted_name(device):
    return Alternating(device), (torch.randn(2, 8, device=device),)


class Even:
    def __init__(self, device):
        self.gain = torch.full((8,), 2.0, device=device)

    def __call__(self, x):
        self.__class__ = Odd  # guilty: the same
        return x * self.gain  # guilty: the same


class Odd(Even):
    def __call__(self, x):
        self.__class__ = Even  # guilty: the same
        return x + self.gain  # guilty: each call makes it an object of the other class


def class_of_the_object_alternates(device):
    return Even(device), (torch.randn(8, device=device),)


class Fresh(nn.Module):
    """Sets itself up in its first call and is then of another class, as lazy modules are."""

    def __init__(self, device):
        super().__init__()
        self.where = device

    def forward(self, x):
        self.register_buffer("scale", torch.full((x.shape[-1],), 0.5, device=x.device))
        self.__class__ = Settled
        return self(x)


class Settled(Fresh):
    def forward(self, x):
        return x * self.scale


def class_of_the_object_settles(device):
    # After the first warm-up it is always the same class.
    return Fresh(device), (torch.randn(2, 8, device=device),)


class Alternator(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8, device=device), nn.Linear(8, 8, device=device)
        self.run = types.MethodType(Alternator.first, self)

    def first(self, x):
        self.run = types.MethodType(Alternator.second, self)  # guilty: the same
        return self.up(x)  # guilty: the same

    def second(self, x):
        self.run = types.MethodType(Alternator.first, self)  # guilty: the same
        return self.down(x)  # guilty: the same

    @torch.no_grad()
    def forward(self, x):
        return self.run(x)  # guilty: the method is replaced in each call


def bound_method_is_replaced(device):
    return Alternator(device), (torch.randn(2, 8, device=device),)


class Lcg:
    """A small random generator of one's own, as simulations for games have."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        self.state = (1103515245 * self.state + 12345) & 0x7FFFFFFF  # guilty: the same
        return self.state / 0x7FFFFFFF


def noise_of_a_generator_by_hand(device):
    rng = Lcg(7)

    def f(x):
        return x + 0.1 * rng.uniform()  # guilty: a number of the host drawn at capture

    return f, (torch.randn(8, device=device),)


def noise_of_a_generator_made_in_the_call(device):
    # Each call starts from the same seed and draws the same numbers.
    def f(x):
        rng = Lcg(7)
        for _ in range(3):
            x = x + 0.1 * rng.uniform()
        return x

    return f, (torch.randn(8, device=device),)


class LeastRecentlyUsed:
    def __init__(self, gains):
        self.gains = collections.OrderedDict(gains)

    def take(self):
        name, gain = self.gains.popitem(last=False)
        self.gains[name] = gain  # guilty: the same
        return gain


def gains_in_turn_of_their_use(device):
    gains = LeastRecentlyUsed({"low": 0.5, "mid": 1.0, "high": 2.0})

    def f(x):
        return x * gains.take()  # guilty: the one that was used longest ago

    return f, (torch.randn(8, device=device),)


def flag_in_a_set(device):
    flags = {"mirrored"}

    def f(x):
        flags.symmetric_difference_update({"mirrored"})  # guilty: the same
        if "mirrored" in flags:  # guilty: the same
            x = x.flip(-1)  # guilty: each call changes whether the flag is there
        return x * 2

    return f, (torch.randn(8, device=device),)


def schedule_that_runs_out(device):
    schedule, steps = [1.0, 0.5, 0.25, 0.125, 0.1, 0.05], itertools.count()

    def f(x):
        try:
            rate = schedule[next(steps)]  # guilty: the same
        except IndexError:
            rate = 0.01
        return x * rate  # guilty: the rate of the step at capture

    return f, (torch.randn(8, device=device),)


def _make_counter():
    calls = 0

    def bump():
        nonlocal calls
        calls += 1  # guilty: the same

    def read():
        return calls

    return bump, read


def two_closures_share_a_cell(device):
    bump, read = _make_counter()

    def f(x):
        bump()  # guilty: the same
        return x / (1 + read())  # guilty: what the other closure counts

    return f, (torch.randn(8, device=device),)


class Registers:
    """Eight bits of state in one integer."""

    def __init__(self):
        self.bits = 1

    def step(self):
        self.bits = ((self.bits << 1) | (self.bits >> 7)) & 0xFF  # guilty: the same

    def __getitem__(self, index):
        return bool(self.bits >> index & 1)


def bit_of_a_register_moves(device):
    registers = Registers()

    def f(x):
        registers.step()
        for index in range(8):
            if registers[index]:  # guilty: the bit that is set at capture
                x = x * (1 + index)  # guilty: the same
        return x

    return f, (torch.randn(8, device=device),)


@dataclass
class TrainState:
    step: int = 0
    history: list = field(default_factory=list)

    @property
    def warm(self):
        return self.step >= 1000


def branch_of_a_property_of_a_dataclass(device):
    state = TrainState()

    def f(x):
        state.step += 1  # guilty: the same
        if state.warm:  # guilty: after a thousand steps the other branch is taken
            return x.clamp(-1, 1)  # guilty: the same
        return x * 0.1

    return f, (torch.randn(8, device=device),)


class Throttled:
    """Refreshes its scale every few calls, with the number of calls in a chain of owners."""

    class Clock:
        def __init__(self):
            self.now = types.SimpleNamespace(count=0)

        def __next__(self):
            self.now.count += 1  # guilty: the same
            return self.now.count

        def __iter__(self):
            return self

    def __init__(self, device):
        self.clock = self.Clock()
        self.scale = torch.ones(8, device=device)

    def __call__(self, x):
        if next(self.clock) % 10 == 0:  # guilty: only every tenth call
            self.scale.copy_(x.abs() + 1)  # guilty: the same
        return x / self.scale


def scale_refreshed_every_tenth_call(device):
    return Throttled(device), (torch.randn(8, device=device),)


# --- what only looks like it


def size_by_reduce(device):
    def f(x):
        return x.sum() / functools.reduce(operator.mul, x.shape, 1)

    return f, (torch.randn(4, 8, device=device),)


@functools.cache
def _positions(length, device):
    return torch.arange(length, device=device, dtype=torch.float32)


def table_is_made_in_each_call(device):
    # The cache is emptied, so the table is made inside the capture, by a kernel.
    def f(x):
        _positions.cache_clear()
        return x * _positions(x.shape[-1], x.device)

    return f, (torch.randn(4, 8, device=device),)


class Config:
    def __init__(self, scale, shift):
        self.scale, self.shift, self.used = scale, shift, 0


def settings_are_copied_and_changed(device):
    defaults = Config(2.0, 0.5)

    def f(x):
        config = copy.copy(defaults)
        config.scale *= 0.5
        config.used += 1
        return x * config.scale + config.shift / config.used

    return f, (torch.randn(8, device=device),)


class Named:
    """Gains by the name of the function that wants one."""

    gains = types.MappingProxyType({"encode": 0.5, "decode": 2.0})

    def _gain(self):
        return self.gains[sys._getframe(1).f_code.co_name]

    def encode(self, x):
        return x * self._gain()

    def decode(self, x):
        return x * self._gain()

    def __call__(self, x):
        return self.decode(self.encode(x).relu())


def gain_by_the_name_of_the_caller(device):
    return Named(), (torch.randn(8, device=device),)


class Numbered(nn.Module):
    """Layers take their number from a counter that each forward sets back."""

    def __init__(self, device):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, device=device) for _ in range(3))
        self.index = 0

    def _block(self, x):
        x = self.layers[self.index](x) / (1 + self.index)
        self.index += 1
        return x

    @torch.no_grad()
    def forward(self, x):
        self.index = 0
        for _ in self.layers:
            x = self._block(x)
        return x


def layers_numbered_anew_in_each_call(device):
    return Numbered(device), (torch.randn(2, 8, device=device),)


def coroutine_of_one_call(device):
    def f(x):
        controller = _controller(16)
        next(controller)
        for row in x:
            x = x * controller.send(row.shape[0])
        return x

    return f, (torch.randn(3, 8, device=device),)


class Nested:
    """Knows how deep it is in itself, and does its extra work only outermost."""

    def __init__(self, device):
        self.depth = 0
        self.bias = torch.ones(8, device=device)

    @contextlib.contextmanager
    def _entered(self):
        self.depth += 1
        try:
            yield self.depth
        finally:
            self.depth -= 1

    def __call__(self, x, more=2):
        with self._entered() as depth:
            if more:
                x = self(x * depth, more - 1)
            if self.depth == 1:
                x = x + self.bias
            return x


def depth_goes_up_and_down(device):
    return Nested(device), (torch.randn(8, device=device),)


class Saturating:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls = min(self.calls + 1, 2)
        return x * self.calls


def counter_that_saturates(device):
    # It is 2 from the second warm-up on.
    return Saturating(), (torch.randn(8, device=device),)


def alignment_decides_the_path(device):
    def f(x):
        if x.data_ptr() % 16 == 0 and x.is_contiguous() and x.stride(-1) == 1:
            return x.view(-1, 4).sum(-1)
        return x.reshape(-1, 4).sum(-1)

    return f, (torch.randn(16, device=device),)


@contextlib.contextmanager
def _without_collector():
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def collector_is_off_during_the_step(device):
    weight = torch.ones(8, device=device)

    def step(grad):
        with _without_collector():
            weight.sub_(grad, alpha=0.1)
            return weight.clone()

    return step, (torch.randn(8, device=device),)


def warned_once(device):
    warned = False

    def f(x):
        nonlocal warned
        if x.shape[-1] % 16 and not warned:
            warnings.warn("the size is not a multiple of 16", stacklevel=2)
            warned = True
        return x.softmax(-1)

    return f, (torch.randn(2, 10, device=device),)


class Scratch(nn.Module):
    """An intermediate result is kept on the module during the call, and dropped after it."""

    def __init__(self, device):
        super().__init__()
        self.norm = nn.LayerNorm(8, device=device)
        self.kept = None

    @property
    def squares(self):
        if self.kept is None:
            self.kept = self.x.square()
        return self.kept

    @torch.no_grad()
    def forward(self, x):
        self.x = x
        try:
            return self.norm(self.squares) + self.squares.mean()
        finally:
            self.kept = self.x = None


def intermediate_result_kept_during_the_call(device):
    return Scratch(device), (torch.randn(2, 8, device=device),)


class Counting(collections.UserDict):
    """Counts its hits for a report that the step does not read."""

    def __init__(self, data):
        self.hits = collections.Counter()
        super().__init__(data)

    def __getitem__(self, key):
        self.hits[key] += 1
        return super().__getitem__(key)


def dictionary_counts_its_hits(device):
    gains = Counting({"low": 0.5, "high": 2.0})

    def f(x):
        return x * gains["low"] + gains["high"]

    return f, (torch.randn(8, device=device),)


def parity_toggled_twice(device):
    parity = 0

    def f(x):
        nonlocal parity
        for _ in range(2):
            parity ^= 1
            x = x.roll(1) if parity else x * 2
        return x

    return f, (torch.randn(8, device=device),)


def bucket_of_a_size(device):
    sizes = [1, 2, 4, 8, 16]

    def f(x):
        padded = sizes[bisect.bisect_left(sizes, x.shape[0])]
        y = x.new_zeros(padded, x.shape[1])
        y[: x.shape[0]] = x
        return y.sum(0)

    return f, (torch.randn(5, 8, device=device),)


def arguments_chosen_by_their_names(device):
    def scale(x, gain=2.0):
        return x * gain

    def shift(x, bias=0.5):
        return x + bias

    settings = {"gain": 3.0, "bias": 1.0, "unused": 7.0}

    def f(x):
        for function in (scale, shift):
            known = inspect.signature(function).parameters
            x = function(x, **{key: value for key, value in settings.items() if key in known})
        return x

    return f, (torch.randn(8, device=device),)


def debugging_that_is_off(device):
    check = os.environ.get("CORPUS_CHECK_NUMERICS", "") == "1"

    def f(x):
        y = x.exp()
        if check and not torch.isfinite(y).all():
            raise FloatingPointError("not finite")
        if log.isEnabledFor(logging.DEBUG):
            log.debug("mean %f", y.mean().item())
        if __debug__ and y.dim() != 2:
            raise ValueError(string.Template("$n dimensions").substitute(n=y.dim()))
        return y

    return f, (torch.randn(2, 8, device=device),)


class TimedCalls:
    def __init__(self):
        self.times = []

    def __call__(self, function):
        @functools.wraps(function)
        def timed(*args, **kwargs):
            started = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.times.append(time.perf_counter_ns() - started)

        return timed


def times_are_only_collected(device):
    timer = TimedCalls()

    @timer
    def f(x):
        return torch.tanh(x) * random.Random(3).random()

    return f, (torch.randn(8, device=device),)
