"""State on the host that is harder to see: defaults, caches, queues, files, generators, threads."""

import collections
import contextvars
import functools
import heapq
import io
import json
import operator
import queue
import random
import secrets
import tempfile
import weakref
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


def default_argument_remembers(device):
    def forward(x, seen=[0]):  # noqa: B006
        seen[0] += 1  # guilty: a default argument that changes
        return x / seen[0]  # guilty: the count of the capture

    return forward, (torch.randn(4, 8, device=device),)


def function_attribute_counts(device):
    def forward(x):
        forward.calls = getattr(forward, "calls", 0) + 1  # guilty: counted on the function itself
        return x * 0.5**forward.calls  # guilty: the count of the capture

    return forward, (torch.randn(4, 8, device=device),)


def generator_function_of_scales(device):
    def scales():
        scale = 1.0
        while True:
            yield scale
            scale *= 0.9

    values = scales()

    def forward(x):
        return x * next(values)  # guilty: a number from a generator

    return forward, (torch.randn(4, 8, device=device),)


def generator_used_up_inside(device):
    def scales(n):
        yield from (1 / (i + 1) for i in range(n))

    def forward(x):
        return sum(x * scale for scale in scales(4))

    return forward, (torch.randn(4, 8, device=device),)


def takes_from_a_queue(device):
    rates = queue.Queue()
    for i in range(10_000):
        rates.put(0.001 * i)

    def forward(x):
        rate = rates.get()  # guilty: each call takes another number
        return x - rate * x.sign()  # guilty: the number of the capture

    return forward, (torch.randn(4, 8, device=device),)


def pops_from_a_stack(device):
    widths = [8, 4, 2, 1] * 1000

    def forward(x):
        k = widths.pop()  # guilty: each call takes another number
        return x.topk(k).values.mean(-1)  # guilty: the width of the capture

    return forward, (torch.randn(4, 16, device=device),)


def heap_of_priorities(device):
    heap = [(1.0, 0), (2.0, 1), (3.0, 2)]
    tables = torch.randn(3, 8, device=device)

    def forward(x):
        priority, index = heapq.heappop(heap)  # guilty: the order changes on the host
        heapq.heappush(heap, (priority + 2.5, index))  # guilty: the order changes on the host
        return x * tables[index]  # guilty: the row of the capture

    return forward, (torch.randn(4, 8, device=device),)


class RunningMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value):
        self.sum = self.sum + value  # guilty: a new tensor in each call
        self.count += 1  # guilty: counted on the host

    def average(self):
        return self.sum / self.count  # guilty: both are of the capture


def meter_of_losses(device):
    model = nn.Linear(8, 1, device=device)
    meter = RunningMeter()

    @torch.no_grad()
    def forward(x):
        loss = model(x).square().mean()
        meter.update(loss)
        return loss - meter.average()  # guilty: both are of the capture

    return forward, (torch.randn(4, 8, device=device),)


class Throttle:
    """Lets every n-th call through."""

    def __init__(self, n):
        self.n = n
        self.calls = 0

    def __bool__(self):
        self.calls += 1  # guilty: asking changes the answer
        return self.calls % self.n == 0  # guilty: asking changes the answer


def regularises_every_16_calls(device):
    model = nn.Linear(8, 1, device=device)
    due = Throttle(16)

    def loss(x):
        out = model(x).square().mean()
        if due:  # guilty: the branch of the capture
            out = out + model.weight.square().sum()
        return out

    return loss, (torch.randn(4, 8, device=device),)


def cached_by_lru(device):
    @functools.lru_cache(maxsize=8)
    def frequencies(width):
        return torch.arange(width, device=device).float().mul(-0.5).exp()

    def forward(x):
        return x * frequencies(x.shape[-1])

    return forward, (torch.randn(4, 8, device=device),)


def cached_property_of_a_module(device):
    class Positional(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        @functools.cached_property
        def table(self):
            return torch.arange(8, device=self.scale.device).float().cos()

        def forward(self, x):
            return x + self.scale * self.table

    return Positional().to(device), (torch.randn(4, 8, device=device),)


LEVEL = contextvars.ContextVar("level", default=1.0)


def level_in_a_context_variable(device):
    def forward(x):
        level = LEVEL.get()
        LEVEL.set(level * 0.5)  # guilty: a context variable that changes
        return x * level  # guilty: the level of the capture

    return forward, (torch.randn(4, 8, device=device),)


def level_in_a_constant_context(device):
    level = contextvars.ContextVar("constant", default=0.25)

    def forward(x):
        return x * level.get()

    return forward, (torch.randn(4, 8, device=device),)


def settings_file_read_each_call(device):
    folder = tempfile.mkdtemp()
    file = Path(folder) / "settings.json"
    file.write_text(json.dumps({"scale": 1}))

    def forward(x):
        settings = json.loads(file.read_text())  # guilty: a file that changes
        file.write_text(json.dumps({"scale": settings["scale"] + 1}))  # guilty: a file that changes
        return x * settings["scale"]  # guilty: what the file said at the capture

    return forward, (torch.randn(4, 8, device=device),)


def settings_file_read_once(device):
    with tempfile.NamedTemporaryFile("w+", suffix=".json") as file:
        json.dump({"scale": 3}, file)
        file.seek(0)
        settings = json.load(file)

    def forward(x):
        return x * settings["scale"]

    return forward, (torch.randn(4, 8, device=device),)


def generator_object_of_python(device):
    rng = random.Random(11)

    def forward(x):
        shift = rng.gauss(0, 1)  # guilty: drawn on the host
        return x + shift  # guilty: the number of the capture

    return forward, (torch.randn(4, 8, device=device),)


def token_from_the_system(device):
    def forward(x):
        salt = secrets.randbelow(1 << 16)  # guilty: drawn by the operating system
        return (x.long() ^ salt).float()  # guilty: the number of the capture

    return forward, (torch.randn(4, 8, device=device) * 100,)


def chooses_one_of_many_augmentations(device):
    augmentations = [torch.neg, torch.abs, functools.partial(torch.mul, other=2.0)]

    def forward(x):
        chosen = random.choice(augmentations)  # guilty: chosen on the host
        return chosen(x)  # guilty: the one of the capture

    return forward, (torch.randn(4, 8, device=device),)


def applies_all_augmentations(device):
    augmentations = [torch.neg, torch.abs, functools.partial(torch.mul, other=2.0)]

    def forward(x):
        return functools.reduce(lambda value, function: function(value), augmentations, x)

    return forward, (torch.randn(4, 8, device=device),)


def weighted_by_table_of_steps(device):
    table = tuple(1.0 if i < 900 else 0.1 for i in range(3000))
    position = [0]

    def forward(x):
        weight = table[min(position[0], 2999)]
        position[0] += 1  # guilty: the place in the table is counted on the host
        return x * weight  # guilty: the weight of the capture

    return forward, (torch.randn(4, 8, device=device),)


def decays_by_epochs_of_500(device):
    model = nn.Linear(8, 8, device=device)
    model.iteration = 0

    def forward(x):
        model.iteration += 1  # guilty: counted on the host
        epoch = model.iteration // 500
        return model(x) * 0.5**epoch  # guilty: the epoch of the capture

    return forward, (torch.randn(4, 8, device=device),)


def partial_with_a_mutable_setting(device):
    options = {"gain": 1.0}

    def scale(options, x):
        options["gain"] += 0.25  # guilty: a dict that changes
        return x * options["gain"]  # guilty: the gain of the capture

    return functools.partial(scale, options), (torch.randn(4, 8, device=device),)


def partial_with_a_constant(device):
    def scale(gain, x):
        return x * gain

    return functools.partial(scale, 0.75), (torch.randn(4, 8, device=device),)


class Router(nn.Module):
    modes = ("relu", "tanh", "sigmoid")

    def __init__(self):
        super().__init__()
        self.mode = collections.deque(self.modes)

    def forward(self, x):
        self.mode.rotate(1)  # guilty: the mode rotates on the host
        return getattr(torch, self.mode[0])(x)  # guilty: the mode of the capture


def rotates_its_activation(device):
    return Router().to(device), (torch.randn(4, 8, device=device),)


def looks_an_activation_up(device):
    table = {"relu": torch.relu, "tanh": torch.tanh}
    name = "tanh"

    def forward(x):
        return operator.itemgetter(name)(table)(x)

    return forward, (torch.randn(4, 8, device=device),)


class Weak(nn.Module):
    def __init__(self, owner):
        super().__init__()
        self.owner = weakref.ref(owner)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x) * self.owner().gain  # guilty: the gain of the capture


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 1.0
        self.child = Weak(self)

    def forward(self, x):
        self.gain = self.gain * 0.99  # guilty: a Python number that decays
        return self.child(x)  # guilty: the gain of the capture


def child_reads_its_owner(device):
    return Owner().to(device), (torch.randn(4, 8, device=device),)


class TemperatureHolder(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return (x / self.temperature).softmax(-1)


def temperature_set_once(device):
    return TemperatureHolder(0.7).to(device), (torch.randn(4, 8, device=device),)


def hook_counts_and_scales(device):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(device)
    calls = [0]

    def scale(module, args, out):
        calls[0] += 1  # guilty: counted on the host, in a hook
        return out / calls[0]  # guilty: the count of the capture

    model[1].register_forward_hook(scale)

    def forward(x):
        return model(x)

    return forward, (torch.randn(4, 8, device=device),)


def gradient_hook_with_a_schedule(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)
    factor = {"value": 1.0}

    def scale(grad):
        factor["value"] *= 0.9  # guilty: decays on the host, in a hook of backward
        return grad * factor["value"]  # guilty: the factor of the capture

    model.weight.register_hook(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def saves_a_checkpoint_in_the_step(device):
    model = nn.Linear(8, 8, device=device)

    def forward(x):
        y = model(x)
        torch.save(y.detach(), io.BytesIO())  # guilty: copies the tensor to the host
        return y

    return forward, (torch.randn(4, 8, device=device),)


def plateau_on_host(device):
    model = nn.Linear(8, 1, device=device)
    x = torch.randn(4, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # guilty: a float learning rate
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step(loss)  # guilty: compares the loss on the host

    return step


def loss_history_of_tensors(device):
    model = nn.Linear(8, 1, device=device)
    history = []

    @torch.no_grad()
    def forward(x):
        loss = model(x).square().mean()
        history.append(loss)  # guilty: replays append nothing
        return loss - history[max(0, len(history) - 10)]  # guilty: the loss of another capture

    return forward, (torch.randn(4, 8, device=device),)


def sorted_by_python(device):
    weights = {"b": 2.0, "a": 1.0, "c": 3.0}

    def forward(x):
        for name in sorted(weights):
            x = x * weights[name] + len(name)
        return x

    return forward, (torch.randn(4, 8, device=device),)


def global_registry_of_losses(device):
    model = nn.Linear(8, 1, device=device)

    def loss(x):
        y = model(x)
        return sum(function(y) for function in LOSSES)

    return loss, (torch.randn(4, 8, device=device),)


LOSSES = [lambda y: y.square().mean(), lambda y: functional.softplus(y).mean()]


def registers_itself_once(device):
    model = nn.Linear(8, 8, device=device)
    registry = set()

    def forward(x):
        registry.add(type(model).__name__)
        return model(x) * len(registry)

    return forward, (torch.randn(4, 8, device=device),)


def warms_up_its_table_lazily(device):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.linspace(0, 1, x.shape[-1], device=x.device)
            return x * self.table

    return Lazy(), (torch.randn(4, 8, device=device),)


def lazy_module_with_known_width(device):
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4)).to(device)
    x = torch.randn(4, 8, device=device)
    model(x)
    return model, (x,)


def string_of_shapes_as_key(device):
    tables = {}

    def forward(x):
        key = f"{tuple(x.shape)}-{x.dtype}"
        if key not in tables:
            tables[key] = torch.full_like(x, 0.5)
        return x * tables[key]

    return forward, (torch.randn(4, 8, device=device),)
