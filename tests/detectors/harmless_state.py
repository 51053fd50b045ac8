"""Entry points whose host state changes and reaches no op: nothing must be found."""

import collections
import contextlib
import contextvars
import functools
import itertools
import logging
import multiprocessing
import pathlib
import queue
import random
import tempfile
import threading
import time
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

log = logging.getLogger("harmless")
CALLS = 0
POSITION = contextvars.ContextVar("POSITION", default=0)
TIMES = collections.defaultdict(list)
CONFIG = {"scale": 0.5, "layers": (1, 2), "act": "relu", "nested": {"eps": 1e-5}}


def rows(device, *shape):
    return torch.ones(*(shape or (4, 8)), device=device)


def body(on):
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(on)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


def counter_that_nothing_reads(device):
    return Counting().to(device), (rows(device),)


class Logging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.step = 0

    def forward(self, x):
        self.step += 1
        if self.step % 2 == 0:
            log.info("step %d: shape %s", self.step, tuple(x.shape))
            print(f"step {self.step}")
        return self.layer(x)


def logged_every_other_step(device):
    return Logging().to(device), (rows(device),)


def timestamps(device):
    model = body(device)
    spent = {"total": 0.0, "calls": 0}

    def run(x):
        begin = time.perf_counter()
        y = model(x)
        spent["total"] += time.perf_counter() - begin
        spent["calls"] += 1
        TIMES["run"].append(time.time())
        return y

    return run, (rows(device),)


@contextlib.contextmanager
def timed(name):
    begin = time.perf_counter_ns()
    try:
        yield
    finally:
        TIMES[name].append(time.perf_counter_ns() - begin)


def timed_blocks(device):
    model = body(device)

    def run(x):
        with timed("model"):
            x = model(x)
        with timed("loss"):
            return x.square().mean()

    return run, (rows(device),)


@functools.cache
def slope(heads):
    return 2.0 ** (-8 / heads)


def cached_function(device):
    def run(x):
        return x * slope(4)

    return run, (rows(device),)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.longest = 0
        self.table = None

    def forward(self, x):
        length = x.shape[-1]
        if self.table is None or length > self.longest:
            self.table = torch.arange(length, device=x.device).float()
            self.longest = length
        return x * self.table[:length]


def cache_that_grows_once(device):
    return Rotary().to(device), (rows(device),)


class Progress:
    """As tqdm: it iterates, counts, and prints now and then."""

    def __init__(self, items, least=0.1):
        self.items, self.least = items, least
        self.n = self.last_n = 0
        self.last_time = time.time()

    def __iter__(self):
        for item in self.items:
            yield item
            self.n += 1
            if self.n - self.last_n >= 1:
                now = time.time()
                if now - self.last_time >= self.least:
                    print(f"{self.n} of {len(self.items)}")
                    self.last_time, self.last_n = now, self.n


class WithProgress(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in Progress(self.layers):
            x = layer(x)
        return x


def progress_bar(device):
    return WithProgress().to(device), (rows(device),)


def random_data_made_before(device):
    data = [random.gauss(0, 1) for _ in range(8)]
    weight = torch.tensor(data, device=device)
    rate = random.random()

    def run(x):
        return x * weight * rate

    return run, (rows(device),)


def random_name_of_a_request(device):
    model = body(device)

    def run(x):
        request = uuid.uuid4().hex[:8]
        log.debug("request %s %d", request, random.randrange(10))
        return model(x)

    return run, (rows(device),)


def seeded_in_the_code(device):
    def run(x):
        source = random.Random(0)
        keep = [i for i in range(4) if source.random() < 0.8]
        scale = np.random.default_rng(7).normal()
        return x * scale + len(keep)

    return run, (rows(device),)


def constants(device):
    def run(x):
        for k in CONFIG["layers"]:
            x = x * CONFIG["scale"] + k
        if CONFIG["act"] == "relu":
            x = x.relu()
        return x / (x.norm() + CONFIG["nested"]["eps"])

    return run, (rows(device),)


def sampled_trace(device):
    """A rare branch that only records."""
    traced = []

    def run(x):
        y = x.relu()
        if random.random() < 0.5:
            traced.append(tuple(y.shape))
        return y

    return run, (rows(device),)


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = 0
        self.index = 0

    def forward(self, x):
        self.depth += 1
        self.index = 0
        for _ in range(2):
            x = x * (1 + self.index)
            self.index += 1
        self.depth -= 1
        return x if self.depth == 0 else x.relu()


def counters_that_return(device):
    return Reentrant().to(device), (rows(device),)


def scratch_buffers_in_turn(device):
    class Swapping(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = torch.zeros(4, 8, device=device)
            self.back = torch.zeros(4, 8, device=device)

        def forward(self, x):
            self.front, self.back = self.back, self.front
            self.front.copy_(x)
            return self.front * 2

    return Swapping(), (rows(device),)


def scratch_from_a_pool(device):
    pool = collections.deque(torch.empty(4, 8, device=device) for _ in range(3))

    def run(x):
        out = pool[0]
        pool.rotate(1)
        torch.mul(x, 2, out=out)
        return out + 1

    return run, (rows(device),)


def host_statistics(device):
    """CPU tensors that only the host reads."""
    seen = torch.zeros(3)

    def run(x):
        seen[0] += 1
        seen.mul_(0.99)
        return x * 2

    return run, (rows(device),)


def host_scalar_that_never_changes(device):
    scale = torch.tensor(0.125)

    def run(x):
        return x * scale

    return run, (rows(device),)


def host_branch_that_only_counts(device):
    seen, state = torch.zeros(()), {"n": 0}

    def run(x):
        state["n"] += 1
        if state["n"] % 2:
            seen.add_(1)
        return x * 2

    return run, (rows(device),)


def lazy(device):
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(8)).to(device)
    return model, (rows(device),)


def hook_that_removes_itself(device):
    model = body(device)
    shapes = {}

    def note(module, args, out):
        shapes["first"] = tuple(out.shape)
        handle.remove()

    handle = model[0].register_forward_hook(note)
    return model, (rows(device),)


def first_parameter(device):
    model = body(device)

    def run(x):
        weight = next(model.parameters())
        first = next(iter([1, 2, 3]))
        return model(x.to(weight.dtype)) * first

    return run, (rows(device),)


def locked(device):
    lock, served = threading.Lock(), [0]
    model = body(device)

    def run(x):
        with lock:
            served[0] += 1
        return model(x)

    return run, (rows(device),)


def background_heartbeat(device):
    beats = {"n": 0}

    def beat():
        while True:
            beats["n"] += 1
            time.sleep(0.05)

    threading.Thread(target=beat, daemon=True).start()
    model = body(device)

    def run(x):
        if beats["n"] < 0:
            raise RuntimeError("no heartbeat")
        return model(x)

    return run, (rows(device),)


def watchdog(device):
    model, begun = body(device), time.monotonic()

    def run(x):
        if time.monotonic() - begun > 1e6:
            raise TimeoutError("took too long")
        return model(x)

    return run, (rows(device),)


def list_that_is_refilled(device):
    parts = []

    def run(x):
        parts.clear()
        for k in range(3):
            parts.append(x * k)
        out = torch.stack(parts)
        parts.clear()
        return out

    return run, (rows(device),)


@dataclass
class Stats:
    calls: int = 0
    shapes: collections.Counter = field(default_factory=collections.Counter)

    def note(self, x):
        self.calls += 1
        self.shapes[tuple(x.shape)] += 1
        return self.calls % 100 == 0


def statistics_by_shape(device):
    stats, model = Stats(), body(device)

    def run(x):
        if stats.note(x):
            log.info("calls %s", stats)
        return model(x)

    return run, (rows(device),)


def decorated(device):
    model = body(device)

    def counted(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            wrapper.calls += 1
            begin = time.time()
            result = function(*args, **kwargs)
            TIMES[function.__name__].append(time.time() - begin)
            return result

        wrapper.calls = 0
        return wrapper

    @counted
    def run(x, scale=2.0):
        return model(x) * scale

    return run, (rows(device),)


def global_counter(device):
    def run(x):
        global CALLS
        CALLS += 1
        return x.relu()

    return run, (rows(device),)


def named_ranges(device):
    steps = itertools.count()

    def run(x):
        with torch.profiler.record_function(f"step {next(steps)}"):
            return x.relu() * 2

    return run, (rows(device),)


def memo_by_shape(device):
    memo = {}

    def mask(n, on):
        key = (n, str(on))
        if key not in memo:
            memo[key] = torch.ones(n, n, device=on).tril()
        return memo[key]

    def run(x):
        return x @ mask(x.shape[-1], x.device)

    return run, (rows(device),)


def rate_limited_log(device):
    state = {"last": 0.0, "skipped": 0}
    model = body(device)

    def run(x):
        y = model(x)
        now = time.monotonic()
        if now - state["last"] > 0.0001:
            log.info("mean shape %s after %d", y.shape, state["skipped"])
            state["last"], state["skipped"] = now, 0
        else:
            state["skipped"] += 1
        return y

    return run, (rows(device),)


def dropout_of_pytorch(device):
    def run(x):
        return functional.dropout(x, 0.1) + torch.rand_like(x)

    return run, (rows(device),)


def callbacks(device):
    events = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.listeners = [lambda name: events.append((name, time.time()))]

        def emit(self, name):
            for listener in self.listeners:
                listener(name)

        def forward(self, x):
            self.emit("begin")
            x = self.layer(x)
            self.emit("end")
            return x

    return Model().to(device), (rows(device),)


def training_step_with_a_log(device):
    model = body(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state, x = {"step": 0, "epoch": 0}, rows(device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        state["step"] += 1
        if state["step"] % 100 == 0:
            state["epoch"] += 1
            print("epoch", state["epoch"])
        return loss.detach()

    return step


def constant_rate(device):
    model, x = body(device), rows(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    return step


def answer_with_a_number(device):
    """The caller gets a number of the host next to the tensor."""
    state = {"n": 0}

    def run(x):
        state["n"] += 1
        return x * 2, {"calls": state["n"]}

    return run, (rows(device),)


def array_read_only(device):
    table = np.linspace(0, 1, 16)

    def run(x):
        return x * float(table[3]) + table.mean().item()

    return run, (rows(device),)


def ids_and_hashes(device):
    known = {}

    def run(x):
        known[id(x)] = known.get(id(x), 0) + 1
        return x * len(x.shape)

    return run, (rows(device),)


def flag_that_is_set_once(device):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.ready = False
            self.scale = 1.0

        def forward(self, x):
            if not self.ready:
                self.scale = 1 / x.shape[-1]
                self.ready = True
            return x * self.scale

    return Model().to(device), (rows(device),)


def scheduler_outside(device):
    weight = nn.Parameter(rows(device))
    rate = torch.tensor(0.1, device=device)
    optimizer = torch.optim.Adam([weight], lr=rate, capturable=True)
    history = [torch.optim.lr_scheduler.StepLR(optimizer, 1000)]

    def step():
        optimizer.zero_grad(set_to_none=True)
        weight.square().sum().backward()
        optimizer.step()

    step.schedulers = history
    return step


def generator_of_layers(device):
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).to(device)

    def enabled():
        for number, layer in enumerate(layers):
            log.debug("layer %d at %f", number, time.time())
            yield layer

    def run(x):
        for layer in enabled():
            x = layer(x)
        return x

    return run, (rows(device),)


def stack_of_the_code(device):
    """State that the code sets and takes back."""
    scopes = []

    @contextlib.contextmanager
    def scope(name):
        scopes.append(name)
        yield ".".join(scopes)
        scopes.pop()

    def run(x):
        with scope("outer") as name, scope("inner"):
            log.debug(name)
            return x * len(scopes)

    return run, (rows(device),)


def hooks_that_compute(device):
    model = body(device)
    kept = {}
    model[0].register_forward_hook(lambda module, args, out: functional.normalize(out))
    model[1].register_forward_hook(lambda module, args, out: kept.update(act=out.detach()))

    def run(x):
        return model(x) * kept["act"].mean()

    return run, (rows(device),)


def rare_report_of_a_helper(device):
    model, state = body(device), {"step": 0}

    def report(x):
        log.info("step %d %s", state["step"], x.shape)
        TIMES["report"].append(time.time())

    def run(x):
        y = model(x)
        state["step"] += 1
        if state["step"] % 1000 == 0:
            report(y)
        return y

    return run, (rows(device),)


class Constant:
    """What Python calls by itself returns the same in each call."""

    def __init__(self):
        self.factors = (1.0, 2.0)

    def __bool__(self):
        return len(self.factors) > 1

    def __iter__(self):
        return iter(self.factors)

    def __enter__(self):
        return self.factors[1]

    def __exit__(self, *_error):
        pass


def object_that_python_asks(device):
    constant = Constant()

    def run(x):
        for factor in constant:
            x = x * factor
        with constant as factor:
            return x * factor if constant else x

    return run, (rows(device),)


def functions_of_torch_func(device):
    """The tensors inside `vmap` have no memory, and neither have those on `meta`."""
    model, weight = nn.Linear(8, 4, device=device), torch.ones(8, device=device)
    skeleton = nn.Linear(8, 4, device="meta")

    def run(x):
        def one(row):
            kept = {"row": row, "rows": [row * 2]}

            def inner():
                return (kept["row"] * weight).sum() + kept["rows"][0].sum()

            output = torch.func.functional_call(skeleton, dict(model.named_parameters()), (row,))
            return output * inner()

        shape = (torch.empty(4, 8, device="meta") * 2).shape
        return torch.func.vmap(one)(x) * shape[0]

    return run, (rows(device),)


def depth_of_a_thread(device):
    kept = threading.local()
    kept.depth, kept.calls = 0, 0

    def run(x):
        kept.depth += 1
        kept.calls += 1
        y = x * (1.0 / kept.depth)
        kept.depth -= 1
        return y

    return run, (rows(device),)


class Stage(NamedTuple):
    step: int = 0
    scale: float = 0.5


@dataclass(frozen=True)
class Settings:
    step: int = 0
    scale: float = 0.5


class Replaced(nn.Module):
    """The field that reaches an op is never replaced."""

    def __init__(self):
        super().__init__()
        self.stage, self.settings = Stage(), Settings()

    def forward(self, x):
        self.stage = self.stage._replace(step=self.stage.step + 1)
        self.settings = replace(self.settings, step=self.settings.step + 1)
        return x * self.stage.scale * self.settings.scale


def other_fields_replaced(device):
    return Replaced().to(device), (rows(device),)


class Slotted:
    __slots__ = ("hits", "scale")

    def __init__(self):
        self.hits, self.scale = 0, 0.5


def slots_that_count(device):
    states = {"a": Slotted()}

    def run(x):
        state = states["a"]
        state.hits += 1
        return x * state.scale

    return run, (rows(device),)


class OfItsType(nn.Module):
    calls, scale, table = 0, 0.5, (1.0, 2.0)

    def forward(self, x):
        type(self).calls += 1
        return x * type(self).scale * self.table[1]


def attributes_of_a_type(device):
    return OfItsType().to(device), (rows(device),)


class Named(nn.Module):
    """Layers and tensors by computed names, beside a count."""

    def __init__(self):
        super().__init__()
        self.calls = self.seen_train = self.seen_eval = 0
        for number in range(3):
            setattr(self, f"layer{number}", nn.Linear(8, 8))

    def forward(self, x):
        self.calls += 1
        for number in range(3):
            if not hasattr(self, f"scale{number}"):
                setattr(self, f"scale{number}", 1.0 / (number + 1))
            x = getattr(self, f"layer{number}")(x) * getattr(self, f"scale{number}")
        return getattr(functional, "relu" if self.training else "gelu")(x)


def layers_by_computed_names(device):
    return Named().to(device), (rows(device),)


def long_history(device):
    history = collections.deque([0.0] * 100, maxlen=100)
    plan = collections.deque([1.0] * 500)

    def run(x):
        history.append(time.time())
        plan.rotate(-1)
        return x * plan[0]

    return run, (rows(device),)


def logged_after_a_return(device):
    weights, calls = [rows(device), rows(device)], [0]

    def note(value):
        calls[0] += 1
        if calls[0] % 100:
            return
        for weight in weights:
            log.info("%s: %s", calls[0], tuple(weight.shape))

    def run(x):
        y = x * weights[0]
        note(y)
        return y

    return run, (rows(device),)


def counts_beside_tensors(device):
    """Of what is kept for a layer, the count reaches no op."""
    kept = collections.defaultdict(dict)

    def run(x):
        own = kept[tuple(x.shape)]
        if not own:
            own["calls"], own["mean"], own["rate"] = 0, torch.zeros(8, device=x.device), 0.1
        own["calls"] += 1
        own["mean"].lerp_(x.mean(0), own["rate"])
        return (x - own["mean"]) * own["rate"]

    return run, (rows(device),)


class CountingBehindADecorator(nn.Module):
    """The function of PyTorch around its `forward` makes it no module of PyTorch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0

    @torch.no_grad()
    def forward(self, x):
        self.calls += 1
        return self.layer(x)


def counter_behind_a_decorator(device):
    return CountingBehindADecorator().to(device), (rows(device),)


NOT_A_NUMBER = float("nan")


def nan_is_not_equal_to_itself(device):
    """NumPy's `linspace` reads a global NaN."""
    fills = {"low": [float("nan")], "high": NOT_A_NUMBER}

    def run(x):
        for share in np.linspace(0.0, 1.0, 4):
            x = x * (1 + float(share))
        x = torch.where(x > 2, fills["low"][0], x)
        fills["low"] = [float("nan")]
        return x.masked_fill(x < 0, NOT_A_NUMBER).nanmean() + torch.nan_to_num(x, fills["high"])

    return run, (rows(device),)


def casts_to_what_it_is(device):
    calls = {"n": 0}

    def forward(x):
        calls["n"] += 1
        dtype = torch.bfloat16 if torch.is_autocast_enabled() else x.dtype
        return x.to(dtype).contiguous() * x.size(0)

    return forward, (rows(device),)


def makes_a_folder(device):
    folder = pathlib.Path(tempfile.mkdtemp()) / "logs"

    def forward(x):
        if not folder.exists():
            folder.mkdir()
        return x * 2

    return forward, (rows(device),)


def writes_now_and_then(device):
    model = body(device)
    calls, saved = {"n": 0}, []

    def forward(x):
        calls["n"] += 1
        y = model(x)
        if calls["n"] % 1000 == 0:
            torch.save(model.state_dict(), "/nowhere/model.pt")
            saved.append((calls["n"], y.detach()))
            torch.cuda.empty_cache()
            model.train()
        return y

    return forward, (rows(device),)


def callbacks_of_each_step(device):
    calls, seen = {"n": 0}, []
    callbacks = [seen.append]

    def forward(x):
        calls["n"] += 1
        for callback in callbacks:
            callback(calls["n"])
        return x * 2

    return forward, (rows(device),)


def remembered_version_of_a_weight(device):
    weight, memory = rows(device, 8), {}

    def step():
        if memory.get("version") != weight._version:
            memory["version"] = weight._version
            memory["sign"] = weight.sign()
        weight.sub_(memory["sign"] * 0.1)
        return weight * 2

    return step


def position_in_a_copied_context(device):
    def inner(x):
        POSITION.set(POSITION.get() + 1)
        return x * POSITION.get()

    def forward(x):
        return contextvars.copy_context().run(inner, x)

    return forward, (rows(device),)


def shared_table(device):
    table, counts = multiprocessing.Array("d", [0.5, 2.0]), multiprocessing.Value("i", 0)

    def forward(x):
        counts.value += 1
        return x * table.get_obj()[1]

    return forward, (rows(device),)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 8), 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * float(self.scale)


def scripted_module_with_a_number(device):
    model = torch.jit.script(Scripted().to(device))

    def forward(x):
        return model(x)

    return forward, (rows(device),)


def order_drawn_from_one_seed(device):
    def forward(x):
        order = torch.randperm(4, generator=torch.Generator().manual_seed(3)).tolist()
        return torch.stack([x[i] * n for n, i in enumerate(order)])

    return forward, (rows(device),)


def item_beside_a_count_in_a_context_that_is_lent(device):
    settings = {"step": 0, "drop": 0.5}

    @contextlib.contextmanager
    def lent():
        yield settings
        settings["step"] += 1

    def forward(x):
        with lent() as context:
            return x * context["drop"]

    return forward, (rows(device),)


def seed_that_each_call_sets(device):
    def forward(x):
        gains = np.random.RandomState(1).rand(8)
        order = np.random.RandomState(0).permutation(3)
        for number in order:
            x = x * float(gains[number])
        return x

    return forward, (rows(device),)


class CountsItsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = self.uses = 0
        self.mean = nn.Buffer(torch.zeros(8))

    def forward(self, x):
        if self.calls == 0:
            self.scale = torch.linspace(0, 1, 8, device=x.device)
        self.calls += 1
        if not self.uses:
            with torch.no_grad():
                self.mean.copy_(x.mean(0))
        self.uses = self.uses + 1
        return (x - self.mean) * self.scale


def first_call_makes_what_later_calls_use(device):
    return CountsItsCalls().to(device), (rows(device),)


def two_calls_to_find_the_best(device):
    count, best = 0, 1.0

    def forward(x):
        nonlocal count, best
        count += 1
        if count <= 2:
            best = 2.0
        return x * best

    return forward, (rows(device),)


def loss_copied_to_a_pinned_number(device):
    weight, host = torch.ones(8, device=device), torch.zeros((), pin_memory=True)

    def forward(x):
        loss = (x * weight).mean()
        host.copy_(loss, non_blocking=True)
        return loss

    return forward, (rows(device),)


def rows_put_back_in_order(device):
    model = torch.nn.Linear(4, 4).to(device).requires_grad_(False)

    def forward(x):
        order = x[:, 0].argsort()
        sorted_rows = model(x[order])
        copied = torch.empty_like(x).index_copy(0, order, sorted_rows)
        return copied + torch.empty_like(x).index_put((order,), sorted_rows)

    return forward, (torch.randn(8, 4, device=device),)


def maxima_of_every_group(device):
    groups = torch.arange(8, device=device) % 4

    def forward(x):
        maxima = torch.empty(4, device=x.device)
        return maxima.scatter_reduce_(0, groups, x, "amax", include_self=False)

    return forward, (torch.ones(8, device=device),)


def answered_by_a_pool(device):
    pool, factors = ThreadPoolExecutor(2), {"low": 0.5, "high": 2.0}

    def look_up(name):
        return factors[name]

    def forward(x):
        power = pool.submit(pow, 2, 3)
        low, high = pool.map(look_up, ("low", "high"))
        return (x * power.result()).clamp(low, high)

    return forward, (rows(device),)


def queue_and_event_of_a_call(device):
    def answer(number, answers, done):
        answers.put({"number": number})
        done.set()

    def forward(x):
        answers, done = queue.SimpleQueue(), threading.Event()
        threading.Thread(target=answer, args=(3, answers, done)).start()
        while not done.is_set():
            done.wait(1)
        return x * answers.get()["number"]

    return forward, (rows(device),)


def pool_of_buffers(device):
    free = queue.Queue()
    for _ in range(2):
        free.put(torch.empty(4, 8, device=device))

    def forward(x):
        buffer = free.get()
        try:
            return torch.mul(x, 2, out=buffer) + 1
        finally:
            free.put(buffer)

    return forward, (torch.randn(4, 8, device=device),)


def queue_filled_and_emptied(device):
    waiting = queue.PriorityQueue()

    def forward(x):
        waiting.put((2, x * 2))
        waiting.put((1, x + 1))
        while not waiting.empty():
            x = x + waiting.get()[1]
        return x

    return forward, (rows(device),)


def served_from_a_queue(device):
    requests, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def serve():
        while True:
            number, power = requests.get()
            answers.put(float(number**power))

    threading.Thread(target=serve, daemon=True).start()

    def forward(x):
        requests.put((x.shape[-1], 2))
        return x * answers.get()

    return forward, (rows(device),)


def version_that_is_compared(device):
    def forward(x):
        before = x._version
        y = x * 2
        if x._version != before:
            raise RuntimeError("the input was changed")
        return y

    return forward, (rows(device),)


def generator_of_one_buffer(device):
    def forever(buffer):
        while True:
            yield buffer

    buffers = forever(rows(device))
    return (lambda x: x + next(buffers)), (rows(device),)


def coroutine_without_state(device):
    def doubles():
        answer = None
        while True:
            value = yield answer
            answer = value * 2

    doubled = doubles()
    next(doubled)
    return (lambda x: doubled.send(x + 1)), (rows(device),)


def coroutine_with_state_in_place(device):
    def averages(state):
        answer = None
        while True:
            value = yield answer
            state.mul_(0.9).add_(value)
            answer = state.clone()

    average = averages(rows(device))
    next(average)
    return (lambda x: average.send(x)), (rows(device),)


def coroutine_that_delegates(device):
    def scales(factor):
        answer = None
        while True:
            value = yield answer
            answer = value * factor

    def delegates():
        yield from scales(3.0)

    scaled = delegates()
    next(scaled)
    return (lambda x: scaled.send(x)), (rows(device),)


def async_generator_of_one_buffer(device):
    async def forever(buffer):
        while True:
            yield buffer

    buffers = forever(rows(device))

    def forward(x):
        try:
            buffers.asend(None).send(None)
        except StopIteration as stop:
            return x + stop.value

    return forward, (rows(device),)


def cycle_that_comes_around(device):
    scales = itertools.cycle((1.0, 2.0))

    def forward(x):
        for _ in range(4):
            x = x * next(scales)
        return x

    return forward, (rows(device),)


def event_that_nobody_sets(device):
    stop = threading.Event()

    def fn(x):
        for _ in range(3):
            if stop.is_set():
                break
            x = x * 2
        return x

    return fn, (rows(device),)


class Engine:
    def __init__(self):
        self.closed = threading.Event()

    def close(self):
        self.closed.set()

    def __call__(self, x):
        return x * 0 if self.closed.is_set() else x + 1


def engine_that_is_open(device):
    return Engine(), (rows(device),)


class Scale:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


class ReplacesItsScaleByTheSame:
    def __init__(self):
        self.scale = Scale(0.5)

    def __call__(self, x):
        self.scale = Scale(0.5)
        return x * self.scale.get()


def object_made_again_with_the_same_field(device):
    return ReplacesItsScaleByTheSame(), (rows(device),)


class ReturnsItsStep:
    """What it returns with the result is for the log."""

    def __init__(self):
        self.calls = 0

    def pair(self, x):
        self.calls += 1
        return x + 1, self.calls

    def table(self, x):
        self.calls += 1
        return {"loss": x + 1, "step": self.calls}

    def record(self, x):
        self.calls += 1
        return SimpleNamespace(loss=x + 1, step=self.calls)


def result_beside_a_counter(device):
    model = ReturnsItsStep()

    def fn(x):
        loss, _step = model.pair(x)
        both = model.pair(x)
        return loss * 2 + both[0]

    return fn, (rows(device),)


def result_in_a_dict_with_a_counter(device):
    model = ReturnsItsStep()

    def fn(x):
        table, record = model.table(x), model.record(x)
        return table["loss"] * 2 + record.loss.sum()

    return fn, (rows(device),)


def result_taken_out_of_a_call_with_a_counter(device):
    model = ReturnsItsStep()

    def fn(x):
        return model.pair(x)[0] * 2 + model.table(x)["loss"] + model.record(x).loss.sum()

    return fn, (rows(device),)


@dataclass
class Batch:
    x: torch.Tensor
    step: int
    at: float = 0.0

    def doubled(self):
        return self.x * 2


class Batched(NamedTuple):
    x: torch.Tensor
    step: int


def batch_with_its_number(device):
    calls = itertools.count()

    def double(batch):
        return batch.x * 2

    def fn(x):
        batch = Batch(x, next(calls), time.monotonic())
        pair = Batched(x, next(calls))
        return double(batch) + batch.doubled() + pair.x * 2

    return fn, (rows(device),)


def results_in_a_list_with_counters(device):
    calls = itertools.count()

    def fn(x):
        results = [(x * scale, next(calls)) for scale in (1.0, 2.0)]
        results.append((x, next(calls)))
        return sum(result for result, _number in results)

    return fn, (rows(device),)


def counter_beside_a_tensor_in_a_nested_dict(device):
    states, weight = {}, rows(device)

    def fn(gradient):
        state = states.setdefault("weight", {})
        if not state:
            state.update(calls=0, average=torch.zeros_like(weight))
        state["calls"] += 1
        state["average"].lerp_(gradient, 0.1)
        return weight - state["average"]

    return fn, (rows(device),)


def counter_in_a_dict_that_is_looked_up(device):
    states, weight = {}, rows(device)

    def fn(gradient):
        if "weight" not in states:
            states["weight"] = {"calls": 0, "average": torch.zeros_like(weight)}
        state = states["weight"]
        state["calls"] += 1
        state["average"].lerp_(gradient, 0.1)
        return weight - state["average"]

    return fn, (rows(device),)


def counter_in_a_dict_that_may_be_none(device):
    states, weight = {}, rows(device)

    def fn(gradient):
        state = states.get("weight")
        if state is None:
            state = states["weight"] = {"calls": 0, "average": torch.zeros_like(weight)}
        state["calls"] = state.get("calls", 0) + 1
        state["average"].lerp_(gradient, 0.1)
        return weight - state["average"]

    return fn, (rows(device),)


def counter_in_a_dict_that_is_put_back(device):
    states, weight = {}, rows(device)

    def fn(gradient):
        state = states.get("weight", {"calls": 0, "average": torch.zeros_like(weight)})
        state["calls"] += 1
        states["weight"] = state
        state["average"].lerp_(gradient, 0.1)
        return weight - state["average"]

    return fn, (rows(device),)


def counter_in_a_dict_that_is_updated_and_put_back(device):
    states, weight = {}, rows(device)

    def fn(gradient):
        state = states.get("weight", {"calls": 0, "average": torch.zeros_like(weight)})
        state.update(calls=state["calls"] + 1)
        states["weight"] = state
        state["average"].lerp_(gradient, 0.1)
        return weight - state["average"]

    return fn, (rows(device),)


def counter_in_a_dict_that_is_merged_and_put_back(device):
    states, weight = {}, rows(device)

    def fn(gradient):
        state = states.get("weight", {"calls": 0, "average": torch.zeros_like(weight)})
        state |= {"calls": state["calls"] + 1}
        states["weight"] = state
        state["average"].lerp_(gradient, 0.1)
        return weight - state["average"]

    return fn, (rows(device),)


class Forgetful(nn.Module):
    """Removes now and then what no op reads, and what it makes in every call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8).requires_grad_(False)
        self.calls, self.seen, self.masks = 0, [], {}
        self.note = ""

    def mask(self, x):
        if len(self.masks) > 8:
            self.masks.clear()
        if x.shape not in self.masks:
            self.masks[x.shape] = torch.ones_like(x)
        return self.masks[x.shape]

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        while len(self.seen) > 4:
            del self.seen[0]
        if self.calls % 16 == 0:
            self.seen.clear()
            vars(self).pop("note", None)
        self.scratch = self.linear(x)
        y = self.scratch * self.mask(x)
        del self.scratch
        return y


def removes_what_no_op_reads(device):
    return Forgetful().to(device), (rows(device),)


class Quantized(nn.Module):
    """Computes from a weight again whenever that has a new version, which the step moves on in
    every call."""

    def __init__(self, device):
        super().__init__()
        self.weight = nn.Parameter(rows(device, 8), requires_grad=False)
        self.version, self.value, self.kept, self.table = None, None, None, {}

    def train_step(self):
        y = self.quantized() * 2
        self.weight.mul_(1.1)
        return y


class QuantizedIfAny(Quantized):
    def quantized(self):
        if self.value is None or self.version != self.weight._version:
            self.version = self.weight._version
            self.value = self.weight.round()
        return self.value


def version_or_nothing_there(device):
    return QuantizedIfAny(device).train_step


class QuantizedByFlag(Quantized):
    def quantized(self):
        is_stale = self.version != self.weight._version
        self.version = self.weight._version
        if is_stale:
            self.value = self.weight.round()
        return self.value


def version_as_a_flag(device):
    return QuantizedByFlag(device).train_step


class QuantizedBelow(Quantized):
    def quantized(self):
        version = self.weight._version
        if self.version == version and self.value is not None:
            return self.value
        self.version, self.value = version, self.weight.round()
        return self.value


def version_with_an_early_return(device):
    return QuantizedBelow(device).train_step


class QuantizedElsewhere(Quantized):
    def is_stale(self):
        return self.version is None or self.version < self.weight._version

    def refresh(self):
        self.version = self.weight._version
        self.value = self.weight.round()

    def quantized(self):
        if self.is_stale():
            self.refresh()
        return self.value


def version_in_methods(device):
    return QuantizedElsewhere(device).train_step


class QuantizedInATuple(Quantized):
    def quantized(self):
        if self.kept is None or self.kept[0] != self.weight._version:
            self.kept = (self.weight._version, self.weight.round())
        return self.kept[1]


def version_in_a_tuple(device):
    return QuantizedInATuple(device).train_step


class QuantizedInADict(Quantized):
    def quantized(self):
        if self.table.get("version", -1) != self.weight._version or "value" not in self.table:
            self.table["version"] = self.weight._version
            self.table["value"] = self.weight.round()
        return self.table["value"]


def version_in_a_dict(device):
    return QuantizedInADict(device).train_step


class QuantizedInEachStep(Quantized):
    def __init__(self, device):
        super().__init__(device)
        self.steps = self.quantized_at = 0

    def quantized(self):
        self.steps += 1
        if self.value is None or self.quantized_at != self.steps:
            self.quantized_at = self.steps
            self.value = self.weight.round()
        return self.value


def step_of_the_last_value(device):
    return QuantizedInEachStep(device).train_step


def kind_of_a_copy_on_the_host(device):
    weight = torch.randn(8, 8, device=device)

    def forward(x):
        y = x @ weight
        host = y.mean(1).to("cpu", non_blocking=True)
        if host is not None and host.dtype == torch.float32 and not host.requires_grad:
            y = y * 2
        if isinstance(host, torch.Tensor) and host.dim() == 1 and host.is_contiguous():
            y = y + 1
        return y, host

    return forward, (rows(device),)


def _rows(device, count=2):
    return [{"weight": rows(device), "calls": 0} for _ in range(count)]


def counts_in_rows_that_are_looped_over(device):
    kept = _rows(device)

    def run(x):
        for row in kept:
            x = x * row["weight"]
            row["calls"] += 1
        return x

    return run, (rows(device),)


def counts_in_rows_by_index(device):
    kept = _rows(device)

    def run(x):
        for i in range(len(kept)):
            x = x * kept[i]["weight"]
            kept[i]["calls"] += 1
        return x

    return run, (rows(device),)


def counts_in_a_table(device):
    kept = {"first": _rows(device)[0]}

    def run(x):
        for _name, row in kept.items():
            x = x * row["weight"]
            row["calls"] += 1
        return x

    return run, (rows(device),)


def counts_beside_the_weights(device):
    weights, counts = [rows(device) for _ in range(2)], [{"n": 0}, {"n": 0}]

    def run(x):
        for weight, count in zip(weights, counts, strict=True):
            x = x * weight
            count["n"] += 1
        return x

    return run, (rows(device),)


def log_of_each_layer(device):
    kept = [(rows(device), []) for _ in range(2)]

    def run(x):
        for number, (weight, log) in enumerate(kept):
            x = x * weight
            log.append(number)
        return x

    return run, (rows(device),)


class Counts(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "calls": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["calls"] += 1
            for each in group["params"]:
                each.add_(each.grad, alpha=-0.1)


def optimizer_that_counts_its_calls(device):
    weight = nn.Parameter(rows(device))
    optimizer = Counts([weight])

    def step():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Owner:
    pass


def proxy_of_an_owner_that_is_gone(device):
    owner = Owner()
    kept = [weakref.proxy(owner), {"calls": 0}]
    del owner

    def run(x):
        for _each in kept:
            x = x * 2
        kept[1]["calls"] += 1
        return x

    return run, (rows(device),)


def asked_behind_a_count(device):
    """What is asked of a tensor says nothing of its values; what is decided is on the host."""
    calls, seen = {"n": 0}, []
    mask = torch.ones(4, device=device)

    def step(x):
        calls["n"] += 1
        if calls["n"] > 40 and mask is not None and mask.dim() == 1:
            seen.append(calls["n"])
        calls["n"] % 10 == 0 and seen.clear()
        return x * mask

    return step, (torch.ones(4, device=device),)


def raises_that_end_the_program(device):
    """An exception that nobody handles, or that becomes another one, is no branch of the ops."""
    calls = {"n": 0}

    def step(x):
        calls["n"] += 1
        try:
            if calls["n"] > 1000:
                raise RuntimeError("more steps than planned")
            x = x * 2
        except KeyError:
            x = x + 1
        try:
            if calls["n"] > 2000:
                raise ValueError("too many steps")
            x = x * 2
        except ValueError as error:
            raise RuntimeError("cannot go on") from error
        return x

    return step, (torch.ones(4, device=device),)


def raised_and_caught_beside_the_ops(device):
    calls, log = {"n": 0}, []

    def step(x):
        calls["n"] += 1
        try:
            if calls["n"] > 40:
                raise StopIteration
            log.append(calls["n"])
        except StopIteration:
            log.clear()
        return x * 2

    return step, (torch.ones(4, device=device),)


def hook_that_only_notes_is_registered_late(device):
    calls, seen, lin = {"n": 0}, [], nn.Linear(4, 4).to(device)

    def note(module, args, out):
        seen.append(out.shape)

    def step(x):
        calls["n"] += 1
        if calls["n"] == 40:
            lin.register_forward_hook(note)
        return lin(x)

    return step, (torch.ones(2, 4, device=device),)


def counts_by_name_in_a_loop_over_them(device):
    counts = {"a": 0, "b": 0}
    w = {"a": torch.ones(4, device=device), "b": torch.full((4,), 2.0, device=device)}

    def step(x):
        for name in counts:
            x = x * w[name]
            counts[name] += 1
        return x

    return step, (torch.ones(4, device=device),)


def counts_by_name_in_another_loop(device):
    counts = collections.Counter(a=1, b=1)
    w = {"a": torch.ones(4, device=device), "b": torch.full((4,), 2.0, device=device)}

    def step(x):
        for name, _n in counts.items():
            x = x * w[name]
        for name in list(counts):
            counts[name] += 1
        return x

    return step, (torch.ones(4, device=device),)


def counts_by_constant_names(device):
    counts = {}
    w = {"a": torch.ones(4, device=device), "b": torch.full((4,), 2.0, device=device)}

    def step(x):
        for name in ("a", "b"):
            counts[name] = counts.get(name, 0) + 1
        for name in sorted(counts):
            x = x * w[name]
        return x

    return step, (torch.ones(4, device=device),)


def counts_in_a_comprehension(device):
    counts = collections.Counter(a=1, b=1)
    weights = {"a": torch.ones(4, device=device), "b": torch.full((4,), 2.0, device=device)}

    def step(x):
        parts = [x * weights[name] for name in counts]
        for name in counts:
            counts[name] += 1
        return torch.stack(parts)

    return step, (torch.ones(4, device=device),)


def count_that_has_reached_its_cap(device):
    calls = {"n": 5}

    def step(x):
        calls["n"] += 1
        return x * min(calls["n"], 3)

    return step, (torch.ones(4, device=device),)


def result_of_append_is_none(device):
    seen, lin = [], nn.Linear(4, 4).to(device)
    lin.register_forward_hook(lambda module, args, out: seen.append(out.shape))

    def step(x):
        y = lin(x)
        replaced = seen.append(1)
        if replaced is not None:
            y = replaced
        return y

    return step, (torch.ones(2, 4, device=device),)


def hook_that_only_notes_is_removed_late(device):
    calls, seen, lin = {"n": 0}, [], nn.Linear(4, 4).to(device)
    handle = lin.register_forward_hook(lambda module, args, out: seen.append(out.shape))

    def step(x):
        calls["n"] += 1
        if calls["n"] == 45:
            handle.remove()
        return lin(x)

    return step, (torch.ones(2, 4, device=device),)


def _check(count):
    if count > 5000:
        raise RuntimeError("more calls than planned")


def exception_of_a_helper_that_nobody_handles(device):
    calls = {"n": 0}

    def step(x):
        calls["n"] += 1
        try:
            _check(calls["n"])
        except KeyError:
            x = x + 1
        return x * 2

    return step, (torch.ones(4, device=device),)


class Ramp:
    def __init__(self, *values):
        self.values, self.calls = values, 5

    def __call__(self):
        try:
            return self.values[self.calls]
        except IndexError:
            return self.values[-1]
        finally:
            self.calls += 1


def schedule_that_has_ended(device):
    rate = Ramp(0.0, 0.5, 0.9)

    def step(x):
        return x * rate()

    return step, (torch.ones(4, device=device),)


def warmup_that_has_ended(device):
    calls = {"n": 50}

    def step(x):
        calls["n"] += 1
        return x * min(1.0, calls["n"] / 10)

    return step, (torch.ones(4, device=device),)


class Watch:
    """Notes shapes for some calls, and takes itself out."""

    def __init__(self, module):
        self.left, self.shapes = 45, set()
        self.handle = module.register_forward_hook(self)

    def __call__(self, module, args, out):
        self.left -= 1
        self.shapes.add(tuple(out.shape))
        if not self.left:
            self.handle.remove()


def hook_that_is_an_object_takes_itself_out(device):
    lin = nn.Linear(4, 4).to(device)
    Watch(lin)
    return lin, (torch.ones(2, 4, device=device),)


def exception_beside_what_always_runs(device):
    calls, refills = {"n": 0}, []

    def spend():
        calls["n"] += 1
        if calls["n"] > 48:
            raise RuntimeError("spent")

    def step(x):
        try:
            spend()
        except RuntimeError:
            refills.append(calls["n"])
        finally:
            x = x * 2
        return x

    return step, (torch.ones(4, device=device),)


class Meter:
    def __init__(self, name, gain, device):
        self.name, self.gain = name, gain
        self.scratch = torch.empty(4, 8, device=device)

    def factor(self):
        return self.gain * 2

    def scale(self, x):
        return x * self.factor()

    def load(self, x):
        self.scratch.copy_(x)
        return self


class Meters:
    def __init__(self, device):
        self.now, self.old = Meter("a", 2.0, device), Meter("b", 2.0, device)

    def scaled(self, x):
        y = self.now.scale(x)
        self.now, self.old = self.old, self.now
        return y

    def loaded(self, x):
        y = self.now.load(x).scratch * 2
        self.now, self.old = self.old, self.now
        return y


def objects_that_are_alike_are_exchanged(device):
    return Meters(device).scaled, (rows(device),)


def objects_with_scratch_memory_are_exchanged(device):
    return Meters(device).loaded, (rows(device),)
