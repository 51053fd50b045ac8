"""Closures, partials, generators, decorators, dataclasses, properties, references, threads."""

import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import ClassVar, NamedTuple

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class Progress:
    step: int = 0
    tau: float = 1.0


class Annealed:
    def __init__(self):
        self.progress = Progress()

    def __call__(self, x):
        self.progress = dataclasses.replace(  # guilty: here too
            self.progress, step=self.progress.step + 1, tau=max(0.5, self.progress.tau * 0.95)
        )
        return (x / self.progress.tau).softmax(-1)  # guilty: tau of the capture


def frozen_dataclass_is_replaced(device):
    return Annealed(), (torch.randn(4, 8, device=device),)


@dataclasses.dataclass
class Running:
    step: torch.Tensor
    tau: torch.Tensor
    floor: float = 0.5
    names: tuple[str, ...] = ("a", "b")


def dataclass_of_tensors(device):
    state = Running(
        torch.zeros((), dtype=torch.int64, device=device), torch.ones((), device=device)
    )

    def sample(x):
        state.step += 1
        state.tau.mul_(0.95).clamp_(min=state.floor)
        values = dataclasses.asdict(state)
        return (x / state.tau).softmax(-1) * len(values)

    return sample, (torch.randn(4, 8, device=device),)


def partial_made_of_a_schedule(device):
    schedule = types.SimpleNamespace(value=1.0)

    def scaled(x, temperature):
        return torch.tanh(x / temperature)  # guilty: the number that the partial was made with

    def forward(x):
        schedule.value *= 0.9  # guilty: changes on the host
        activation = functools.partial(
            scaled, temperature=schedule.value
        )  # guilty: here it is bound
        return activation(x).sum(-1)

    return forward, (torch.randn(4, 8, device=device),)


def partial_of_constants(device):
    scaled = functools.partial(torch.add, alpha=0.5)
    chain = functools.reduce(
        lambda f, g: lambda x: g(f(x)),
        [torch.tanh, operator.neg, functools.partial(torch.mul, 2.0)],
    )

    def forward(x):
        schedule = types.SimpleNamespace(value=1.0)
        schedule.value *= 0.9
        return chain(scaled(x, x)) * schedule.value

    return forward, (torch.randn(4, 8, device=device),)


def _warm_up():
    for step in itertools.count(1):
        yield min(1.0, step / 100)


def generator_yields_the_weight(device):
    weights = _warm_up()
    model = nn.Linear(8, 1, device=device)

    def loss(x):
        weight = next(weights)
        return model(x).square().mean() + weight * model.weight.abs().sum()  # guilty: a number

    return loss, (torch.randn(4, 8, device=device),)


def _layers():
    yield from ((0, 0.5), (1, 0.25))


def generator_made_each_time(device):
    blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)).to(device)

    def forward(x):
        for index, scale in _layers():
            x = x + scale * blocks[index](x)
        pairs = zip(itertools.count(), itertools.repeat(0.1, 2), strict=False)
        return x + sum(number * weight for number, weight in pairs) + next(iter([0.1]))

    return forward, (torch.randn(4, 8, device=device),)


def every(n):
    def decorate(function):
        calls, last = itertools.count(), []

        @functools.wraps(function)
        def wrapper(*args):
            if next(calls) % n == 0 or not last:  # guilty: decided at capture
                last[:] = [function(*args)]
            return last[0]

        return wrapper

    return decorate


def decorator_computes_every_other_time(device):
    statistics = torch.zeros(8, device=device)

    @every(2)
    def spectral(x):
        return x.abs().mean(0)

    @torch.no_grad()
    def forward(x):
        statistics.add_(spectral(x))
        return x - statistics

    return forward, (torch.randn(4, 8, device=device),)


@functools.lru_cache(maxsize=8)
def causal_mask(length, device):
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


def cached_mask(device):
    def attend(x):
        scores = x @ x.mT / x.shape[-1] ** 0.5
        return scores.masked_fill(~causal_mask(x.shape[1], x.device), -torch.inf).softmax(-1) @ x

    return attend, (torch.randn(2, 5, 8, device=device),)


@contextlib.contextmanager
def decaying(model):
    model.noise = getattr(model, "noise", 1.0) * 0.9  # guilty: here too
    yield model.noise


def context_manager_gives_the_noise(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        with decaying(model) as noise:
            return model(x) + noise * x  # guilty: the noise of the capture

    return forward, (torch.randn(4, 8, device=device),)


@contextlib.contextmanager
def evaluating(model):
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def context_manager_restores_the_mode(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).to(device)

    def forward(x):
        with evaluating(model), torch.no_grad(), torch.profiler.record_function("teacher"):
            teacher = model(x)
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.nullcontext())
            return (model(x) - teacher).square().mean()

    return forward, (torch.randn(4, 8, device=device),)


@contextlib.contextmanager
def timed(record):
    torch.cuda.synchronize()  # guilty: waits while capturing
    start = time.perf_counter()
    yield
    record.append(time.perf_counter() - start)


def context_manager_times_the_layer(device):
    model, record = nn.Linear(8, 8, device=device), []

    def forward(x):
        with timed(record):
            return model(x)

    return forward, (torch.randn(4, 8, device=device),)


GLOBAL_STEP = 0


def global_step_in_the_loss(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        global GLOBAL_STEP
        GLOBAL_STEP += 1  # guilty: here too
        beta = GLOBAL_STEP / (GLOBAL_STEP + 10)
        return (1 - beta) * model(x) + beta * x  # guilty: beta of the capture

    return forward, (torch.randn(4, 8, device=device),)


class Layer(nn.Module):
    calls: ClassVar[int] = 0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        Layer.calls += 1  # guilty: here too
        return self.linear(x) / Layer.calls**0.5  # guilty: a number of the class


def class_attribute_counts(device):
    return Layer().to(device), (torch.randn(4, 8, device=device),)


class Registered(nn.Module):
    registry: ClassVar[dict[str, type]] = {}
    depth: ClassVar[int] = 2

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Registered.registry[cls.__name__] = cls

    @classmethod
    def scale(cls):
        return 1.0 / cls.depth

    @functools.cached_property
    def gain(self):
        return 2.0 / len(Registered.registry)


class Child(Registered):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) * type(self).scale() * self.gain


def class_attributes_stay(device):
    return Child().to(device), (torch.randn(4, 8, device=device),)


class Temperature:
    """A property that counts how often it was read."""

    def __init__(self):
        self._reads = 0

    @property
    def value(self):
        self._reads += 1  # guilty: here too
        return 1.0 + 1.0 / self._reads


def property_counts_its_reads(device):
    temperature = Temperature()

    def forward(x):
        return (x / temperature.value).softmax(-1)  # guilty: what it was at capture

    return forward, (torch.randn(4, 8, device=device),)


class Cosine:
    def __get__(self, instance, owner):
        return 0.5 if instance.cosine else 1.0


class WithDescriptor:
    factor = Cosine()

    def __init__(self, cosine):
        self.cosine = cosine

    @property
    def shape(self):
        return (-1, 4)

    def __getattr__(self, name):
        if name == "offset":
            return 0.25
        raise AttributeError(name)

    def __call__(self, x):
        return x.reshape(self.shape) * self.factor + self.offset


def descriptors_and_getattr(device):
    return WithDescriptor(True), (torch.randn(4, 8, device=device),)


class Parented(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.ref(parent)
        self.cache = weakref.WeakKeyDictionary()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        shared = self.parent().weight
        if self.linear not in self.cache:
            self.cache[self.linear] = torch.eye(8, device=x.device)
        return self.linear(x) @ shared + x @ self.cache[self.linear]


def weak_references(device):
    parent = nn.Linear(8, 8, device=device)
    child = Parented(parent).to(device)
    keep = [parent]

    def forward(x):
        return child(x) + keep[0](x)

    return forward, (torch.randn(4, 8, device=device),)


class Mode(enum.Enum):
    WARM = 1
    HOT = 2


class Machine:
    """A state machine of modes."""

    def __init__(self):
        self.mode, self.entered = Mode.WARM, 0

    def advance(self):
        self.entered += 1
        if self.entered >= 6:
            self.mode = Mode.HOT


def enum_switches_later(device):
    machine = Machine()

    def forward(x):
        machine.advance()
        match machine.mode:  # guilty: the mode of the capture
            case Mode.WARM:
                return x * 0.1
            case Mode.HOT:
                return x.exp()

    return forward, (torch.randn(4, 8, device=device),)


class Sizes(NamedTuple):
    heads: int
    width: int


def enum_and_named_tuple(device):
    mode, sizes = Mode.HOT, Sizes(2, 4)

    def forward(x):
        match mode:
            case Mode.WARM:
                return x
            case Mode.HOT:
                heads, width = sizes._replace(width=4)
                return x.view(-1, heads, width).transpose(0, 1).contiguous()

    return forward, (torch.randn(4, 8, device=device),)


def thread_computes_a_part(device):
    pool = ThreadPoolExecutor(1)
    weight = torch.randn(8, 8, device=device)

    @torch.no_grad()
    def forward(x):
        side = pool.submit(torch.matmul, x, weight)  # guilty: not on the capturing stream
        return x + side.result()  # guilty: and waited for here

    return forward, (torch.randn(4, 8, device=device),)


def thread_computes_numbers(device):
    pool = ThreadPoolExecutor(1)

    def forward(x):
        future = pool.submit(sum, [0.1, 0.2])
        answers = SimpleQueue()
        thread = threading.Thread(target=lambda: answers.put(pow(2, 3)))
        thread.start()
        thread.join()
        return x * future.result() + answers.get()

    return forward, (torch.randn(4, 8, device=device),)


class EarlyStopping:
    def __init__(self):
        self.best, self.wait = float("inf"), 0

    def on_step_end(self, logs):
        if logs["loss"] < self.best:  # guilty: compares the loss on the host
            self.best, self.wait = logs["loss"], 0


def callback_compares_the_loss(device):
    model = nn.Linear(8, 1, device=device)
    callbacks = [EarlyStopping()]
    x = torch.randn(4, 8, device=device)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for callback in callbacks:
            callback.on_step_end({"loss": loss.detach()})
        return loss

    return step


class BestLoss:
    def __init__(self, device):
        self.best = torch.full((), torch.inf, device=device)

    def on_step_end(self, logs):
        torch.minimum(self.best, logs["loss"], out=self.best)


def callback_keeps_the_best(device):
    model = nn.Linear(8, 1, device=device)
    callbacks = [BestLoss(device)]
    x = torch.randn(4, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            hook = getattr(callback, "on_step_end", None)
            if callable(hook):
                hook({"loss": loss.detach()})
        return callbacks[0].best.clone()

    return step


def config_is_edited(device):
    config = {"train": {"dropout": {"p": 0.5}}}

    def forward(x):
        p = config["train"]["dropout"]["p"]
        config["train"]["dropout"]["p"] = max(0.0, p - 0.05)  # guilty: here too
        return nn.functional.dropout(x, p)  # guilty: the rate of the capture

    return forward, (torch.randn(64, 8, device=device),)


def config_is_read(device):
    config = {"train": {"dropout": {"p": 0.5}, "layers": [1, 2]}, "dtype": "float32"}

    def forward(x):
        local = {**config["train"]}
        local["layers"] = [*local["layers"], 3]
        x = x.to(getattr(torch, config["dtype"]))
        return nn.functional.dropout(x, local["dropout"]["p"]) * len(local["layers"])

    return forward, (torch.randn(64, 8, device=device),)


def clock_in_the_loss(device):
    start = time.monotonic()
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        weight = 1.0 - 0.5 ** (time.monotonic() - start)  # guilty: here too
        return weight * model(x)  # guilty: the time of the capture

    return forward, (torch.randn(4, 8, device=device),)


def clock_for_the_log_alone(device):
    model = nn.Linear(8, 8, device=device)
    took = threading.local()

    def forward(x):
        start = time.perf_counter()
        y = model(x)
        took.last = time.perf_counter() - start
        return y

    return forward, (torch.randn(4, 8, device=device),)


def list_of_hidden_states(device):
    cell = nn.GRUCell(8, 8, device=device)
    states = [torch.zeros(4, 8, device=device)]

    @torch.no_grad()
    def advance(x):
        states.append(cell(x, states[-1]))  # guilty: a replay reads the state of the capture
        return states[-1]

    return advance, (torch.randn(4, 8, device=device),)


def list_of_hidden_states_inside(device):
    cell = nn.GRUCell(8, 8, device=device)
    carried = torch.zeros(4, 8, device=device)

    @torch.no_grad()
    def advance(xs):
        states = [carried]
        for x in xs:
            states.append(cell(x, states[-1]))
        carried.copy_(states[-1])
        return torch.stack(states[1:])

    return advance, (torch.randn(3, 4, 8, device=device),)


def default_argument_accumulates(device):
    def forward(x, seen=[]):  # noqa: B006
        seen.append(len(seen))  # guilty: here too
        return x * len(seen)  # guilty: as many as there were at capture

    return forward, (torch.randn(4, 8, device=device),)
