"""Code that runs without a visible call: decorators, context managers, operators and other
protocols of Python, delegation, buffers of bytes, wrappers of tensors and modules."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import math
import struct
import types

import torch
from torch import nn
from torch.utils._pytree import tree_map


def _layer_and_input(device):
    return nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)


def _with_decay(function):
    calls = 0

    @functools.wraps(function)
    def wrapper(x):
        nonlocal calls
        calls += 1  # guilty: no replay counts
        return function(x) * 0.5 ** (calls // 800)  # guilty: the power of the capture

    return wrapper


# The decorator counts, and the function does not know of it.
def decorator_that_decays(device):
    layer, x = _layer_and_input(device)

    @_with_decay
    def forward(x):
        return layer(x)

    return forward, (x,)


def _checked(function):
    @functools.wraps(function)
    def wrapper(*args):
        if not all(isinstance(each, torch.Tensor) for each in args):
            raise TypeError("tensors only")
        return function(*args)

    wrapper.calls = 0
    return wrapper


# The decorator looks at types, which are the same in each call.
def decorator_that_checks(device):
    layer, x = _layer_and_input(device)

    @_checked
    def forward(x):
        return layer(x).relu()

    return forward, (x,)


class _Ramp:
    """A decorator that is an object."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function, self.seen = function, 0

    def __call__(self, x):
        self.seen += 1  # guilty: no replay counts
        return self.function(x) * min(1.0, self.seen / 5000)  # guilty: the ramp of the capture


def object_as_decorator(device):
    layer, x = _layer_and_input(device)

    @_Ramp
    def forward(x):
        return layer(x)

    return forward, (x,)


class _Stage:
    """A context whose level rises each time that it is entered."""

    def __init__(self):
        self.level = 0

    def __enter__(self):
        self.level += 1  # guilty: no replay enters it
        return 1.0 + self.level // 900

    def __exit__(self, *_exc):
        return False


def context_that_remembers(device):
    layer, x = _layer_and_input(device)
    stage = _Stage()

    def forward(x):
        with stage as factor:
            return layer(x) * factor  # guilty: the factor of the capture

    return forward, (x,)


# What is set at the beginning is set back at the end of each call.
def context_that_restores(device):
    layer, x = _layer_and_input(device)
    settings = {"scale": 1.0}

    @contextlib.contextmanager
    def scaled(value):
        before, settings["scale"] = settings["scale"], value
        try:
            yield
        finally:
            settings["scale"] = before

    def forward(x):
        with scaled(0.5):
            y = layer(x) * settings["scale"]
        return y * settings["scale"]

    return forward, (x,)


class _Factor:
    """A number that grows whenever it is multiplied with."""

    def __init__(self):
        self.uses = 0

    def __rmul__(self, x):
        self.uses += 1  # guilty: no replay uses it
        return torch.mul(x, 1.0 + self.uses // 600)  # guilty: the number of the capture

    __mul__ = __rmul__


def operator_that_counts(device):
    layer, x = _layer_and_input(device)
    factor = _Factor()

    def forward(x):
        return factor * layer(x)

    return forward, (x,)


class _Column:
    def __init__(self):
        self.reads = 0

    def __index__(self):
        self.reads += 1  # guilty: no replay reads it
        return self.reads // 700 % 8


# The object is an index by `__index__`, which is asked once in each call.
def index_that_moves(device):
    layer, x = _layer_and_input(device)
    column = _Column()

    def forward(x):
        return layer(x).select(1, column.__index__())  # guilty: the column of the capture

    return forward, (x,)


class _Constant:
    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value


# `float()` of an object of the host that never changes.
def number_of_an_object(device):
    layer, x = _layer_and_input(device)
    scale = _Constant(0.5)

    def forward(x):
        return layer(x) * float(scale)

    return forward, (x,)


class _Table:
    """Rates by step; beyond its end, the last."""

    def __init__(self, rates):
        self.rates = rates

    def __getitem__(self, step):
        return self.rates[min(step, len(self.rates) - 1)]

    def __len__(self):
        return len(self.rates)


def table_by_an_item(device):
    layer, x = _layer_and_input(device)
    rates, state = _Table([0.1] * 1000 + [0.01]), {"step": 0}

    def forward(x):
        state["step"] += 1  # guilty: no replay counts
        return layer(x) * rates[state["step"]]  # guilty: the rate of the capture

    return forward, (x,)


# The table is read at places that the code gives.
def table_by_constants(device):
    layer, x = _layer_and_input(device)
    rates = _Table([0.1, 0.01, 0.001])

    def forward(x):
        return sum(layer(x) * rates[i] for i in range(len(rates) + 1))

    return forward, (x,)


class _Sampler:
    """A sampler whose order depends on the epoch, as those of distributed training."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch // 300)
        return iter(
            torch.randperm(self.size, generator=generator).tolist()  # guilty: drawn on the host
        )


# The rows are visited in the order of an epoch that is set in each call.
def sampler_of_an_epoch(device):
    layer, x = _layer_and_input(device)
    sampler, epochs = _Sampler(4), {"n": 0}

    def forward(x):
        epochs["n"] += 1  # guilty: no replay counts
        sampler.set_epoch(epochs["n"])  # guilty: nor sets it
        y = layer(x)
        return torch.stack([y[i] * n for n, i in enumerate(sampler)])  # guilty: the order

    return forward, (x,)


# The epoch never changes, and the order is drawn from the same seed.
def sampler_of_one_epoch(device):
    layer, x = _layer_and_input(device)
    sampler = _Sampler(4)

    def forward(x):
        y = layer(x)
        return torch.stack([y[i] * n for n, i in enumerate(sampler)])

    return forward, (x,)


# A view of a dictionary that other code changes.
def proxy_of_changing_settings(device):
    layer, x = _layer_and_input(device)
    settings = {"step": 0, "scale": 1.0}
    view = types.MappingProxyType(settings)

    def advance():
        settings["step"] += 1  # guilty: no replay counts
        if settings["step"] % 1000 == 0:
            settings["scale"] *= 0.5

    def forward(x):
        advance()
        return layer(x) * view["scale"]  # guilty: the scale of the capture

    return forward, (x,)


# Defaults and overrides that nothing writes.
def chained_settings(device):
    layer, x = _layer_and_input(device)
    settings = collections.ChainMap({"scale": 0.5}, {"scale": 1.0, "power": 2})

    def forward(x):
        return layer(x).pow(settings["power"]) * settings["scale"]

    return forward, (x,)


# The overrides are counted up.
def chained_settings_change(device):
    layer, x = _layer_and_input(device)
    settings = collections.ChainMap({}, {"step": 0})

    def forward(x):
        settings["step"] += 1  # guilty: no replay counts
        return layer(x) / (1 + settings["step"] // 1000)  # guilty: the divisor of the capture

    return forward, (x,)


# A header of bytes is shared with a writer, and counts.
def header_of_bytes(device):
    layer, x = _layer_and_input(device)
    header = bytearray(8)

    def forward(x):
        (step,) = struct.unpack_from("<q", header)
        struct.pack_into("<q", header, 0, step + 1)  # guilty: no replay packs
        return layer(x) * 0.5 ** (step // 1000)  # guilty: the power of the capture

    return forward, (x,)


# A header that is only read.
def header_of_constants(device):
    layer, x = _layer_and_input(device)
    header = struct.pack("<qd", 3, 0.5)

    def forward(x):
        power, scale = struct.unpack("<qd", header)
        return layer(x).pow(power) * scale

    return forward, (x,)


class _Delegates(nn.Module):
    """Hands all other attributes to the module that it wraps."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        self.inner.updates += 1  # guilty: no replay counts
        scale = 0.5 ** (self.updates // 1000)
        return self.inner(x) * scale  # guilty: the scale of the capture


def counter_by_delegation(device):
    layer, x = _layer_and_input(device)
    layer.updates = 0
    return _Delegates(layer), (x,)


class _Forwards(_Delegates):
    def forward(self, x):
        return functools.reduce(torch.add, [self.inner(x) * (self.in_features / 8)] * 2)


# The attribute of the inner module is a constant.
def constant_by_delegation(device):
    layer, x = _layer_and_input(device)
    return _Forwards(layer), (x,)


class _Annealed(nn.Module):
    """The temperature is a property, whose setter keeps it above a limit."""

    def __init__(self):
        super().__init__()
        self.layer, self._temperature, self._calls = nn.Linear(8, 8), 5.0, 0

    @property
    def temperature(self):
        return self._temperature if self._calls > 1000 else 5.0

    @temperature.setter
    def temperature(self, value):
        self._calls += 1  # guilty: no replay counts
        self._temperature = max(0.5, value)  # guilty: no replay anneals

    def forward(self, x):
        self.temperature = self._temperature * 0.999  # guilty: no replay anneals
        return self.layer(x).div(self.temperature).softmax(-1)  # guilty: as at the capture


def temperature_behind_a_property(device):
    return _Annealed().to(device), (torch.randn(4, 8, device=device),)


# A coroutine in a loop: the same ops, in order, in the thread of the caller. `asyncio.run` formats
# its task, and with it the result, in an error message that it drops.
def coroutine_in_a_loop(device):
    layer, x = _layer_and_input(device)
    loop = asyncio.new_event_loop()

    async def part(x):
        await asyncio.sleep(0)
        return layer(x)

    async def both(x):
        first, second = await asyncio.gather(part(x), part(x * 2))
        return first + second

    def forward(x):
        return loop.run_until_complete(both(x))

    return forward, (x,)


class _Pair(torch.Tensor):
    """A value with its scale, as one tensor."""

    @staticmethod
    def __new__(cls, value, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, value.shape, dtype=value.dtype, device=value.device
        )

    def __init__(self, value, scale):
        self.value, self.scale = value, scale

    def __tensor_flatten__(self):
        return ["value", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, _meta, _size, _stride):
        return _Pair(inner["value"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        plain = tree_map(
            lambda each: each.value * each.scale if isinstance(each, _Pair) else each, args
        )
        return func(*plain, **(kwargs or {}))


# The wrapper multiplies its two tensors, which both are on the device.
def weight_as_a_pair(device):
    weight = _Pair(torch.randn(8, 8, device=device), torch.full((8, 1), 0.5, device=device))

    @torch.no_grad()
    def forward(x):
        return x @ weight

    return forward, (torch.randn(4, 8, device=device),)


class _Observed(_Pair):
    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        def plain(each):
            if not isinstance(each, _Observed):
                return each
            if each.scale.max() > 1:  # guilty: the truth of a tensor, below the user's op
                return each.value
            return each.value * each.scale

        return func(*tree_map(plain, args), **(kwargs or {}))


def weight_as_an_observed_pair(device):
    weight = _Observed(torch.randn(8, 8, device=device), torch.full((8, 1), 0.5, device=device))

    @torch.no_grad()
    def forward(x):
        return x @ weight

    return forward, (torch.randn(4, 8, device=device),)


# Curvature pairs in a list of limited length are new tensors each time.
def quasi_newton_with_a_deque(device):
    weight = torch.randn(8, device=device)
    pairs = collections.deque(maxlen=3)
    pairs.extend((torch.zeros(8, device=device), torch.ones(8, device=device)) for _ in range(3))

    @torch.no_grad()
    def step(x):
        grad = 2 * (weight - x.mean(0))
        for s, y in pairs:
            grad = grad - s * (y @ grad) / (y @ y + 1)  # guilty: reads the pairs of the warm-up
        pairs.append((-0.1 * grad, grad.clone()))  # guilty: the replay does not keep them
        weight.sub_(grad, alpha=0.1)
        return grad

    return step, (torch.randn(4, 8, device=device),)


# The same pairs in two matrices on the device, which are rolled in place.
def quasi_newton_with_matrices(device):
    weight = torch.randn(8, device=device)
    s, y = torch.zeros(3, 8, device=device), torch.ones(3, 8, device=device)

    @torch.no_grad()
    def step(x):
        grad = 2 * (weight - x.mean(0))
        for i in range(3):
            grad = grad - s[i] * (y[i] @ grad) / (y[i] @ y[i] + 1)
        s.copy_(torch.cat((s[1:], -0.1 * grad.unsqueeze(0))))
        y.copy_(torch.cat((y[1:], grad.unsqueeze(0))))
        weight.sub_(grad, alpha=0.1)
        return grad

    return step, (torch.randn(4, 8, device=device),)


# Centres the chosen values: the mask is counted twice, for reading and for writing.
def centres_by_a_mask(device):
    layer, x = _layer_and_input(device)

    @torch.no_grad()
    def forward(x):
        y = layer(x)
        mask = y > 0
        y[mask] -= y[mask].mean()  # guilty: the number of chosen values is read on the host
        return y

    return forward, (x,)


# The same by sums over all values.
def centres_by_weights(device):
    layer, x = _layer_and_input(device)

    def forward(x):
        y = layer(x)
        mask = (y > 0).float()
        return y - mask * (y * mask).sum() / mask.sum().clamp(min=1)

    return forward, (x,)


# The last rate is kept by an exception: after the end of the list, nothing changes.
def rates_until_an_exception(device):
    layer, x = _layer_and_input(device)
    rates = iter([0.1] * 50 + [0.01] * 50)
    last = {"rate": 0.1}

    def forward(x):
        with contextlib.suppress(StopIteration):
            last["rate"] = next(rates)  # guilty: no replay takes the next
        return layer(x) * last["rate"]  # guilty: the rate of the capture

    return forward, (x,)


# A cache with a computed name is filled in the warm-up and only read after that.
def attributes_by_computed_names(device):
    layer, x = _layer_and_input(device)
    holder = types.SimpleNamespace()

    def table(n):
        name = f"table_{n}"
        if not hasattr(holder, name):
            setattr(holder, name, torch.full((n,), math.sqrt(n), device=x.device))
        return getattr(holder, name)

    def forward(x):
        return layer(x) * table(x.shape[1])

    return forward, (x,)


# Counts by names that are computed; one of them decides.
def counts_by_computed_keys(device):
    layer, x = _layer_and_input(device)
    counts = collections.defaultdict(int)

    def forward(x):
        counts[f"{x.dtype}:{x.shape[0]}"] += 1  # guilty: no replay counts
        if max(counts.values()) > 800:  # guilty: the branch of the capture
            return layer(x) * 2
        return layer(x)

    return forward, (x,)


# A function of its own for each type, chosen in each call by the same type.
def dispatched_by_type(device):
    layer, x = _layer_and_input(device)

    @functools.singledispatch
    def act(x):
        return x

    @act.register
    def _(x: torch.Tensor):
        return x.tanh()

    def forward(x):
        return act(layer(x))

    return forward, (x,)
