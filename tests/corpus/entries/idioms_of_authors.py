"""Python as stylists write it: descriptors, coroutines, registries, scopes, small languages."""

import abc
import contextlib
import contextvars
import dataclasses
import enum
import functools
import operator
import random
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import torch
from torch import nn


def _differences():
    """A coroutine: each value sent is answered with the difference to the one before."""
    previous = None
    answer = None
    while True:
        value = yield answer
        answer = value if previous is None else value - previous  # guilty: that of the capture
        previous = value.clone()  # guilty: a local variable of a suspended frame


def coroutine_that_remembers(device):
    difference = _differences()
    next(difference)

    def f(x):
        return torch.tanh(difference.send(x * 2))  # guilty: here too

    return f, (torch.randn(5, device=device),)


def _windows(rows, size):
    held = []
    for row in rows:
        held = [*held, row][-size:]
        if len(held) == size:
            yield sum(held) / size


def generator_of_moving_means(device):
    def f(x):
        means = _windows(x, 3)
        first = next(means)
        return torch.stack([first, *means]).cumsum(0)

    return f, (torch.randn(7, 4, device=device),)


class Phase(enum.Enum):
    WARM = "warm"
    HOT = "hot"
    COLD = "cold"

    @property
    def following(self):
        members = list(type(self))
        return members[(members.index(self) + 1) % len(members)]


class Machine:
    ACTIONS: ClassVar = {
        Phase.WARM: torch.tanh,
        Phase.HOT: torch.exp,
        Phase.COLD: torch.neg,
    }

    def __init__(self):
        self.phase = Phase.WARM

    def __call__(self, x):
        y = self.ACTIONS[self.phase](x)  # guilty: the phase of the capture
        self.phase = self.phase.following  # guilty: moves on the host
        return y + 1


def machine_with_a_phase_per_call(device):
    return Machine(), (torch.randn(5, device=device),)


class FullTurn(Machine):
    def __call__(self, x):
        for _ in Phase:
            x = self.ACTIONS[self.phase](x)
            self.phase = self.phase.following
        return x


def machine_with_a_full_turn(device):
    # After three phases the machine is in the first one again.
    return FullTurn(), (torch.randn(5, device=device),)


class Bus:
    def __init__(self):
        self.handlers = {}

    def on(self, event, handler):
        self.handlers.setdefault(event, []).append(handler)  # guilty: grows on the host

    def emit(self, event, value):
        for handler in self.handlers.get(event, ()):  # guilty: the handlers of the capture
            value = handler(value)  # guilty: called as often as at capture
        return value


def handlers_added_in_the_step(device):
    bus = Bus()

    def f(x):
        # Somebody meant to write this above: each call adds a handler.
        bus.on("scale", lambda value: value * 0.9)  # guilty: one more in each call
        return bus.emit("scale", x)  # guilty: those of the capture

    return f, (torch.randn(5, device=device),)


class Numbered(type):
    def __init__(cls, name, bases, space):
        super().__init__(name, bases, space)
        cls.made = 0

    def __call__(cls, *args):
        made = super().__call__(*args)
        cls.made += 1  # guilty: counts on the host
        made.number = cls.made  # guilty: the number of the capture
        return made


class Noise(metaclass=Numbered):
    def __init__(self, x):
        self.x = x

    def apply(self):
        return self.x / (self.x.abs() + self.number)  # guilty: the number of the capture


def instances_numbered_by_a_metaclass(device):
    def f(x):
        return Noise(x).apply()

    return f, (torch.randn(5, device=device),)


@dataclasses.dataclass(order=True)
class Candidate:
    score: torch.Tensor
    tokens: torch.Tensor = dataclasses.field(compare=False)


def best_of_ordered_dataclasses(device):
    def f(logits):
        found = [Candidate(row.amax(), row.argsort()) for row in logits]
        # The order is that of the tuples of fields: the tensors in them are compared on the host.
        return max(found).tokens  # guilty: compares tensors

    return f, (torch.randn(3, 6, device=device),)


def mode_matched_by_its_value(device):
    def f(x):
        match x.abs().argmax():  # guilty: the subject is on the device
            case 0:  # guilty: compares it with 0 on the host
                return x.neg()
            case _:
                return x.exp()

    return f, (torch.randn(4, device=device),)


def sometimes(probability):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            # The coin is thrown at capture, once.
            if random.random() < probability:  # guilty: drawn on the host
                return x  # guilty: so decided at capture
            return function(x)  # guilty: so decided at capture

        return wrapper

    return decorate


def layers_skipped_by_a_decorator(device):
    layers = [
        sometimes(0.5)(functools.partial(torch.mul, torch.full((), 1.5 + i, device=device)))
        for i in range(6)
    ]

    def f(x):
        for layer in layers:
            x = layer(x)
        return x

    for i, layer in enumerate(layers):
        layer.__name__ = f"layer{i}"
    return f, (torch.randn(5, device=device),)


class Stored:
    """A descriptor whose assignments copy into the tensor of the object."""

    def __set_name__(self, owner, name):
        self.slot = f"_{name}"

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.slot)

    def __set__(self, instance, value):
        if self.slot in vars(instance):
            getattr(instance, self.slot).copy_(value)
        else:
            setattr(instance, self.slot, value.clone())


class Oscillator:
    position = Stored()
    speed = Stored()

    def __init__(self, device):
        self.position = torch.ones(4, device=device)
        self.speed = torch.zeros(4, device=device)

    def __call__(self, force):
        self.speed = self.speed + 0.1 * (force - self.position)
        self.position = self.position + 0.1 * self.speed
        return self.position.clone()


def descriptors_that_copy(device):
    # It looks like rebinding.
    return Oscillator(device), (torch.randn(4, device=device),)


TEMPERATURE = contextvars.ContextVar("temperature", default=1.0)


@contextlib.contextmanager
def cooled(factor):
    token = TEMPERATURE.set(TEMPERATURE.get() * factor)
    try:
        yield TEMPERATURE.get()
    finally:
        TEMPERATURE.reset(token)


def scopes_that_are_left(device):
    def f(x):
        with cooled(0.5), cooled(0.5) as inner:
            sharp = (x / TEMPERATURE.get()).softmax(-1)
        return sharp * inner + (x / TEMPERATURE.get()).softmax(-1)

    return f, (torch.randn(3, 5, device=device),)


class Expression(abc.ABC):
    kinds: ClassVar = {}

    def __init_subclass__(cls, symbol=None, **rest):
        super().__init_subclass__(**rest)
        if symbol:
            Expression.kinds[symbol] = cls

    @abc.abstractmethod
    def value(self, **names): ...

    def __add__(self, other):
        return Expression.kinds["+"](self, other)

    def __mul__(self, other):
        return Expression.kinds["*"](self, other)


class Name(Expression):
    def __init__(self, name):
        self.name = name

    def value(self, **names):
        return names[self.name]


class Binary(Expression):
    apply = None

    def __init__(self, left, right):
        self.left, self.right = left, right

    def value(self, **names):
        return type(self).apply(self.left.value(**names), self.right.value(**names))


class Sum(Binary, symbol="+"):
    apply = operator.add


class Product(Binary, symbol="*"):
    apply = operator.mul


def expression_built_in_each_call(device):
    def f(a, b):
        tree = (Name("a") + Name("b")) * Name("a") + Name("b")
        return tree.value(a=a, b=b)

    return f, (torch.randn(5, device=device), torch.randn(5, device=device))


def widths_planned_by_threads(device):
    pool = ThreadPoolExecutor(2)
    layer = nn.Linear(8, 8).to(device)

    def f(x):
        # The threads compute with numbers only; they never touch the device.
        widths = list(pool.map(lambda part: part * 2, (1, 2, 1)))
        parts = layer(x).split(widths, dim=1)
        return torch.cat([part.softmax(1) for part in reversed(parts)], 1)

    return f, (torch.randn(3, 8, device=device),)


class Derived:
    """What follows from a module, held as long as the module lives."""

    def __init__(self):
        self.held = weakref.WeakKeyDictionary()

    def normalized(self, module):
        weight = module.weight / module.weight.norm(dim=1, keepdim=True)
        self.held[module] = weight
        return self.held[module]


def weights_held_by_weak_keys(device):
    layer, derived = nn.Linear(6, 4).to(device).requires_grad_(False), Derived()

    def f(x):
        # Computed anew before it is read in each call.
        y = x @ derived.normalized(layer).t()
        layer.weight.mul_(0.99)
        return y + derived.held[layer].sum()

    return f, (torch.randn(3, 6, device=device),)


class Tracked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))

    @functools.cached_property
    def mask(self):
        return torch.ones(5, 5, device=self.layers[0].weight.device).tril_()

    def forward(self, x):
        seen = {}
        with contextlib.ExitStack() as stack:
            for name, layer in self.layers.named_children():
                handle = layer.register_forward_hook(
                    lambda module, args, out, name=name: seen.__setitem__(name, out)
                )
                stack.callback(handle.remove)
            y = self.layers(x @ self.mask)
        return y, sum(out.square().mean() for out in seen.values())


def hooks_of_one_call(device):
    return Tracked().to(device), (torch.randn(3, 5, device=device),)
