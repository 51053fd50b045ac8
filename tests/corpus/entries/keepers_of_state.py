"""Where programs keep what they count: not only attributes and dicts."""

import array
import collections
import contextlib
import ctypes
import dataclasses
import enum
import functools
import heapq
import itertools
import logging
import multiprocessing
import random
import sqlite3
import tempfile
import threading
import time
import uuid
from fractions import Fraction
from pathlib import Path

import torch
from torch import nn

log = logging.getLogger(__name__)


class CStyleCounter:
    def __init__(self):
        self.calls = ctypes.c_long(0)

    def __call__(self, x):
        self.calls.value += 1  # guilty: the same
        return x * (1 - 0.9**self.calls.value)  # guilty: the bias correction of one call


def counter_of_ctypes(device):
    return CStyleCounter(), (torch.randn(8, device=device),)


def rates_in_an_array(device):
    rates = array.array("d", [0.1, 0.01])
    weight = torch.ones(8, device=device)

    def step(grad):
        rates[0] *= 0.99  # guilty: the same
        weight.sub_(grad, alpha=rates[0])  # guilty: the rate decays in an array of the host
        return weight.clone()

    return step, (torch.randn(8, device=device),)


class SharedStep:
    def __init__(self):
        self.step = multiprocessing.Value("i", 0)

    def __call__(self, x):
        with self.step.get_lock():
            self.step.value += 1  # guilty: the same
        return x / self.step.value  # guilty: a counter in shared memory


def counter_in_shared_memory(device):
    return SharedStep(), (torch.randn(8, device=device),)


def counter_in_a_database(device):
    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.execute("create table runs (n integer)")
    base.execute("insert into runs values (0)")

    def f(x):
        base.execute("update runs set n = n + 1")
        (n,) = base.execute("select n from runs").fetchone()  # guilty: the same
        return x * 0.5**n  # guilty: what the database counted before the capture

    return f, (torch.randn(8, device=device),)


def counter_in_a_file(device):
    path = Path(tempfile.mkdtemp()) / "step"
    path.write_text("0")

    def f(x):
        step = int(path.read_text())  # guilty: the same
        path.write_text(str(step + 1))
        return x * (step + 1)  # guilty: the file's number at capture

    return f, (torch.randn(8, device=device),)


class ExactDecay(nn.Module):
    def __init__(self):
        super().__init__()
        self.share = Fraction(1)

    def forward(self, x):
        self.share *= Fraction(9, 10)  # guilty: the same
        return x * float(self.share)  # guilty: a fraction that shrinks on the host


def decay_of_a_fraction(device):
    return ExactDecay(), (torch.randn(8, device=device),)


class LeastUsed(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4, device=device) for _ in range(3))
        self.queue = [(0, index) for index in range(3)]

    @torch.no_grad()
    def forward(self, x):
        used, index = heapq.heappop(self.queue)
        heapq.heappush(self.queue, (used + 1, index))
        return self.experts[index](x)  # guilty: the expert whose turn it was


def expert_from_a_heap(device):
    return LeastUsed(device), (torch.randn(2, 4, device=device),)


def attribute_of_the_function(device):
    def step(x):
        step.calls += 1  # guilty: the same
        return x + step.calls  # guilty: the function counts its calls

    step.calls = 0
    return step, (torch.randn(8, device=device),)


def default_list_remembers(device):
    def f(x, history=[]):  # noqa: B006
        history.append(x.numel())  # guilty: the same
        return x / len(history)  # guilty: a default argument that grows

    return f, (torch.randn(8, device=device),)


class Jacobi:
    def __init__(self, device, sweeps):
        self.front, self.back = torch.zeros(16, device=device), torch.zeros(16, device=device)
        self.sweeps = sweeps

    def __call__(self, b):
        for _ in range(self.sweeps):
            torch.add(b, self.front.roll(1) + self.front.roll(-1), alpha=0.25, out=self.back)
            self.front, self.back = self.back, self.front
        return self.front.clone()


class OddJacobi(Jacobi):
    def __call__(self, b):
        for _ in range(self.sweeps):
            torch.add(
                b, self.front.roll(1) + self.front.roll(-1), alpha=0.25, out=self.back
            )  # guilty: always from one to the other
            self.front, self.back = self.back, self.front  # guilty: swapped by the host
        return self.front.clone()  # guilty: the same


def odd_number_of_sweeps(device):
    return OddJacobi(device, 3), (torch.randn(16, device=device),)


def even_number_of_sweeps(device):
    # After an even number of swaps both names are where they were.
    return Jacobi(device, 4), (torch.randn(16, device=device),)


def layers_rotate_in_a_deque(device):
    gains = collections.deque([0.5, 1.0, 2.0])

    def f(x):
        gains.rotate(1)  # guilty: the same
        return x * gains[0]  # guilty: the gain that was in front at capture

    return f, (torch.randn(8, device=device),)


def counter_of_the_thread(device):
    local = threading.local()

    def f(x):
        local.calls = getattr(local, "calls", 0) + 1  # guilty: the same
        return x * min(1.0, local.calls / 1000)  # guilty: a ramp in a thread's own storage

    return f, (torch.randn(8, device=device),)


class Phase(enum.Enum):
    EXPLORE = 0
    REFINE = 1
    REST = 2

    @property
    def next(self):
        return Phase((self.value + 1) % 3)


class Searcher(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.phase = Phase.EXPLORE
        self.position = nn.Parameter(torch.zeros(8, device=device), requires_grad=False)

    def forward(self, gradient):
        match self.phase:  # guilty: the phase of the capture
            case Phase.EXPLORE:
                self.position.sub_(gradient)
            case Phase.REFINE:
                self.position.sub_(0.1 * gradient)  # guilty: the same
            case Phase.REST:
                self.position.mul_(0.99)  # guilty: the same
        self.phase = self.phase.next
        return self.position.clone()


def phases_of_a_search(device):
    return Searcher(device), (torch.randn(8, device=device),)


def pairs_of_two_schedules(device):
    rates = (0.1 * 0.9**n for n in itertools.count())
    decays = itertools.chain([0.0] * 5, itertools.repeat(0.01))
    schedule = zip(rates, decays, strict=False)
    weight = torch.ones(8, device=device)

    def step(grad):
        for rate, decay in itertools.islice(schedule, 1):
            weight.mul_(1 - decay).sub_(grad * rate)  # guilty: the pair that came at capture
        return weight.clone()

    return step, (torch.randn(8, device=device),)


class CountsForItsLog(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.inner = nn.Linear(8, 8, device=device)
        self.calls = 0
        self.times = collections.deque(maxlen=100)

    def forward(self, x):
        started = time.perf_counter()
        self.calls += 1
        if self.calls % 1000 == 0:
            log.info("%d calls, %.3f s", self.calls, sum(self.times))
        out = self.inner(x)
        self.times.append(time.perf_counter() - started)
        return out


def statistics_of_the_host(device):
    # Counts and times reach no op.
    return CountsForItsLog(device), (torch.randn(2, 8, device=device),)


class ActNorm(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(8, device=device))
        self.scale = nn.Parameter(torch.ones(8, device=device))
        self.initialized = False

    def forward(self, x):
        if not self.initialized:
            with torch.no_grad():
                self.loc.copy_(x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 1e-6))
            self.initialized = True
        return (x - self.loc) * self.scale


def first_batch_initializes(device):
    # The warm-up has initialized it.
    return ActNorm(device), (torch.randn(16, 8, device=device),)


@functools.lru_cache(maxsize=8)
def _angles(length, device):
    return torch.outer(
        torch.arange(length, device=device), 1 / 10 ** torch.arange(4, device=device)
    )


def angles_from_a_cache(device):
    # One shape, one entry of the cache, made in the warm-up.
    def rotate(x):
        angle = _angles(x.shape[0], x.device)
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)

    return rotate, (torch.randn(5, 8, device=device),)


class Tables:
    """Keeps the tables that were used last."""

    def __init__(self, size):
        self.size, self.kept = size, collections.OrderedDict()

    def get(self, key, make):
        if key in self.kept:
            self.kept.move_to_end(key)
        else:
            self.kept[key] = make()
            while len(self.kept) > self.size:
                self.kept.popitem(last=False)
        return self.kept[key]


def tables_used_last(device):
    # Two keys in turn, both stay; their order is the same after each call.
    tables = Tables(4)

    def f(x):
        window = tables.get(("window", len(x)), lambda: torch.hann_window(len(x), device=device))
        ramp = tables.get(("ramp", len(x)), lambda: torch.linspace(0, 1, len(x), device=device))
        return x * window + ramp

    return f, (torch.randn(16, device=device),)


def stop_flag_is_never_set(device):
    # Nobody sets the event.
    stop = threading.Event()
    layer = nn.Linear(4, 4, device=device)

    def f(x):
        for _ in range(3):
            if stop.is_set():
                break
            x = layer(x).relu()
        return x

    return f, (torch.randn(2, 4, device=device),)


def order_of_a_seeded_shuffle(device):
    # A generator with the same seed in each call draws the same order.
    layers = nn.ModuleList(nn.Linear(4, 4, device=device) for _ in range(4))

    def f(x):
        order = list(range(4))
        random.Random(7).shuffle(order)
        for index in order:
            x = layers[index](x).tanh()
        return x

    return f, (torch.randn(2, 4, device=device),)


class Request:
    __slots__ = ("answer", "id")

    def __init__(self, answer):
        self.id, self.answer = uuid.uuid4().hex, answer


def requests_have_names(device):
    # The name is for the log.
    layer = nn.Linear(4, 4, device=device)
    served = collections.deque(maxlen=16)

    def serve(x):
        request = Request(layer(x))
        served.append(request.id)
        log.debug("served %s", request.id)
        return request.answer

    return serve, (torch.randn(2, 4, device=device),)


class Hyper(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.make = nn.Linear(3, 15, device=device)
        self.inner = nn.Linear(4, 3, device=device)

    @torch.no_grad()
    def forward(self, task, x):
        nn.utils.vector_to_parameters(self.make(task), self.inner.parameters())
        return self.inner(x)


def weights_made_from_a_vector(device):
    # The parameters are set before they are read, and point into the graph's memory.
    return Hyper(device), (torch.randn(3, device=device), torch.randn(5, 4, device=device))


@dataclasses.dataclass(frozen=True)
class Particles:
    position: torch.Tensor
    velocity: torch.Tensor
    dt: float = 0.01

    def stepped(self, force):
        velocity = self.velocity + self.dt * force
        return dataclasses.replace(
            self, position=self.position + self.dt * velocity, velocity=velocity
        )


def particles_are_replaced(device):
    # Each call starts from its inputs.
    def f(position, velocity):
        particles = Particles(position, velocity)
        for _ in range(4):
            particles = particles.stepped(-particles.position)
        return particles.position, particles.velocity

    return f, (torch.randn(8, 3, device=device), torch.randn(8, 3, device=device))


class History(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("frames", torch.zeros(4, 8, device=device))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long, device=device))

    def forward(self, frame):
        self.frames.index_copy_(0, self.at, frame[None])
        self.at.add_(1).remainder_(4)
        order = (self.at + torch.arange(4, device=frame.device)) % 4
        return self.frames[order].mean(0)


def ring_with_a_position_on_the_device(device):
    # Position and frames are on the device.
    return History(device), (torch.randn(8, device=device),)


@contextlib.contextmanager
def _scaled(settings, factor):
    before = settings["scale"]
    settings["scale"] = before * factor
    try:
        yield
    finally:
        settings["scale"] = before


def setting_is_restored(device):
    # After each call the setting is what it was.
    settings = {"scale": 1.0}

    def f(x):
        with _scaled(settings, 0.5):
            low = x * settings["scale"]
        return low + x * settings["scale"]

    return f, (torch.randn(8, device=device),)


class Annealing:
    """An immutable stage of a schedule; the next one is another object."""

    def __init__(self, temperature):
        self.temperature = temperature

    def cooled(self):
        return Annealing(max(0.1, 0.9 * self.temperature))

    def sharpen(self, scores):
        return [score / self.temperature for score in scores]

    def __float__(self):
        return 1 / self.temperature


class Annealed(nn.Module):
    def __init__(self, stage):
        super().__init__()
        self.stage, self.calls = stage, 0

    def forward(self, x):
        self.calls += 1  # guilty: it cools every thousandth call
        if self.calls % 1000 == 0:
            self.stage = self.stage.cooled()  # guilty: the same
        (scale,) = self.stage.sharpen([1.0])  # guilty: the same
        return (x * scale).softmax(-1)  # guilty: the same


def stage_is_replaced_now_and_then(device):
    return Annealed(Annealing(1.0)), (torch.randn(4, 8, device=device),)


class Converted(Annealed):
    def forward(self, x):
        self.calls += 1  # guilty: it cools every thousandth call
        if self.calls % 1000 == 0:
            self.stage = self.stage.cooled()  # guilty: the same
        return (x * float(self.stage)).softmax(-1)  # guilty: the same


def stage_is_converted_to_a_number(device):
    return Converted(Annealing(1.0)), (torch.randn(4, 8, device=device),)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.weigh = 0, lambda: 1.0

    def forward(self, x):
        self.calls += 1  # guilty: another function after a thousand calls
        if self.calls > 1000:
            self.weigh = lambda: 0.5  # guilty: the same
        return x * self.weigh()  # guilty: the same


def function_of_the_weight_is_replaced(device):
    return Weighted(), (torch.randn(4, 8, device=device),)


class Monitored(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.inner = nn.Linear(8, 8, device=device)
        self.calls = 0

    def features(self, x):
        self.calls += 1
        return self.inner(x), {"calls": self.calls, "norm": x.norm()}

    def forward(self, x):
        hidden, info = self.features(x)
        return hidden.relu() / info["norm"]


def counter_beside_the_result(device):
    # The number of the call is returned with the tensors, and reaches none of them.
    return Monitored(device), (torch.randn(2, 8, device=device),)


@dataclasses.dataclass
class Observation:
    state: torch.Tensor
    step: int
    seen_at: float

    def scaled(self):
        return self.state * 0.1


def observation_with_its_step(device):
    # An object of each call; only its tensor is used.
    steps = itertools.count()

    def act(state):
        observation = Observation(state, next(steps), time.monotonic())
        return observation.scaled() - observation.state.mean()

    return act, (torch.randn(2, 8, device=device),)
