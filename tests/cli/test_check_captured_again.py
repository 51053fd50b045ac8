"""`cgtool check SCRIPT` runs captured code again: what it reports, and what stays."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.detectors.scripts import Outcome, check
from tests.forked_workers import in_fork, run_cgtool

HEAD = """\
import contextlib, itertools, os, random, sys
from types import SimpleNamespace
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
"""


_MARK = re.compile(r"# <- ([\w-]+)")


def _check(folder: Path, source: str) -> Outcome:
    """Findings are at the marks of the source, and nowhere else."""
    path = folder / "script.py"
    path.write_text(HEAD + source)
    outcome: Outcome = in_fork(check, path, timeout=120)
    assert outcome.failure is None
    lines = enumerate((HEAD + source).splitlines(), 1)
    marks = {(mark[1], number) for number, line in lines if (mark := _MARK.search(line))}
    # What is told apart here does not depend on the input, which often stays as it is.
    found = {each for each in outcome.findings if each[0] != "input-never-written"}
    assert found == marks, outcome
    return outcome


RUNNER = """
class Runner:
    def __init__(self):
        self.graphs = {}

    def scaled(self, scale):
        return x * scale

    def run(self, value, scale):
        key = KEY
        if key not in self.graphs:
            self.scaled(scale)
            new = torch.cuda.CUDAGraph()
            with torch.cuda.graph(new):
                out = self.scaled(scale)
            self.graphs[key] = new, out
        x.fill_(value)
        self.graphs[key][0].replay()
        return self.graphs[key][1].clone()


runner, other = Runner(), Runner()
print(other.run(1.0, 5.0).sum().item())
for value, scale in ((1.0, 2.0), (2.0, 2.0), (3.0, 3.0), (4.0, 3.0)):
    print(runner.run(value, scale).sum().item())
"""
SLICES = """
buffer, settings, graphs = torch.ones(4, 4, device="cuda"), SimpleNamespace(scale=2.0), {}

def scaled(rows):
    return rows * settings.scale  # <- python-scalar-frozen

def run(*args):
    size = len(args[0])
    if size not in graphs:
        graphs[size] = SimpleNamespace(graph=torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[size].graph):
            out = scaled(*args)
        graphs[size].out = out
    buffer[:size].fill_(step)
    graphs[size].graph.replay()
    return graphs[size].out.clone()

for step in range(6):
    print(run(buffer[:1 + step % 2]).sum().item())
    settings.scale += CHANGE
"""
FAULTY = {
    "a slice of a buffer that is an argument": (
        SLICES.replace("CHANGE", "step // 3"),
        ["`settings.scale`", "the capture had 2.0"],
    ),
    "argument that is missing in the key": (
        RUNNER.replace("KEY", "x.shape").replace(
            "return x * scale", "return x * scale  # <- python-scalar-frozen"
        ),
        ["gets 3.0", "the capture had 2.0"],
    ),
    "attribute": (
        """
options = SimpleNamespace(scale=2.0)
with torch.cuda.graph(graph):
    y = x * options.scale  # <- python-scalar-frozen
graph.replay()
options.scale = 3.0
graph.replay()
print(y.sum().item())
""",
        ["gets 3.0", "`options.scale`", "the capture had 2.0"],
    ),
    "global of a helper": (
        """
SCALE = 2.0
def scaled(value):
    return value * SCALE  # <- python-scalar-frozen
with torch.cuda.graph(graph):
    y = scaled(x)
for SCALE in (2.0, 5.0):
    graph.replay()
    print(y.sum().item())
""",
        ["gets 5.0", "`SCALE`"],
    ),
    "a counter decides": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
    def forward(self, x):
        if self.steps < 3:  # <- control-flow-frozen
            return x * 2
        return x.exp()
model = Model()
with torch.cuda.graph(graph):
    y = model(x)
for _ in range(6):
    graph.replay()
    model.steps += 1
    print(y.sum().item())
""",
        ["runs other ops", "`model.steps`"],
    ),
    "a tensor is replaced": (
        """
holder = SimpleNamespace(table=torch.ones(4, device="cuda"))
with torch.cuda.graph(graph):
    y = x + holder.table
graph.replay()
kept, holder.table = holder.table, x * 5  # <- metadata-address-changed
graph.replay()
print(y.sum().item(), kept.sum().item())
""",
        ["`holder.table` is a different tensor"],
    ),
    "a callable of make_graphed_callables": (
        """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.scale = 1.0
    def forward(self, x):
        return x * self.weight * self.scale  # <- python-scalar-frozen
layer = Layer().cuda()
graphed = torch.cuda.make_graphed_callables(layer, (torch.ones(4, device="cuda"),))
graphed(x).sum().backward()
layer.scale = 4.0
layer.weight.grad = None
graphed(x).sum().backward()
print(layer.weight.grad.sum().item())
""",
        ["gets 4.0", "the capture had 1.0"],
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_state_that_has_changed_is_named(tmp_path: Path, name: str) -> None:
    source, texts = FAULTY[name]
    (reason,) = _check(tmp_path, source).reasons
    assert all(text in reason for text in texts), reason


CORRECT = {
    "slices of a buffer": SLICES.replace("CHANGE", "0").replace("# <-", "#"),
    "an argument that is in the key": RUNNER.replace("KEY", "scale"),
    "a graph for each value": """
graphs, outs = {}, {}
options = SimpleNamespace(scale=1.0)
for scale in (1.0, 2.0, 3.0):
    options.scale = scale
    graphs[scale] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graphs[scale]):
        outs[scale] = x * options.scale
for scale in (3.0, 1.0, 2.0, 1.0):
    graphs[scale].replay()
    print(outs[scale].sum().item())
""",
    "a flag that is set around the capture": """
mode = SimpleNamespace(capturing=False)
@contextlib.contextmanager
def capturing():
    mode.capturing = True
    yield
    mode.capturing = False
def run():
    return x * 2 if mode.capturing else torch.add(x, x)
with capturing(), torch.cuda.graph(graph):
    y = run()
for _ in range(3):
    graph.replay()
    print(y.sum().item())
""",
    "a cache of constants": """
cache = {}
def positions(n):
    if n not in cache:
        cache[n] = torch.arange(n, device="cuda") * 2
    return cache[n]
with torch.cuda.graph(graph):
    y = x + positions(4)
for _ in range(3):
    graph.replay()
    print(y.sum().item())
""",
    "state that matters to nothing": """
log, counts = [], {"steps": 0}
with torch.cuda.graph(graph):
    counts["steps"] += 1
    log.append(random.random())
    y = x * 2
for step in range(5):
    counts["steps"] = step
    graph.replay()
    log.append(y.sum().item())
print(log[1:])
""",
    "a block that cannot run again": """
pending = [2.0]
with torch.cuda.graph(graph):
    y = x * pending.pop()
for _ in range(4):
    graph.replay()
    print(y.sum().item())
""",
    "a block that exits when it runs again": """
runs = 0
def once():
    global runs
    runs += 1
    if runs > 1:
        sys.exit(7)
    return x * 2
with torch.cuda.graph(graph):
    y = once()
for _ in range(3):
    graph.replay()
    print(y.sum().item())
""",
    "a block that does not end when it runs again": """
runs = 0
def once():
    global runs
    runs += 1
    while runs > 1:
        pass
    return x * 2
with torch.cuda.graph(graph):
    y = once()
graph.replay()
graph.replay()
print(y.sum().item())
""",
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_programs(tmp_path: Path, name: str) -> None:
    _check(tmp_path, CORRECT[name])


STAYS = """
random.seed(3), np.random.seed(3)
own, generator = random.Random(1), np.random.default_rng(1)
rows, pairs = itertools.count(), zip(itertools.count(), itertools.cycle("ab"))
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
scaler = torch.amp.GradScaler("cuda", enabled=False)
data, state = torch.randn(8, 4, device="cuda"), SimpleNamespace(steps=0, seen=[], scratch={})
total, host, array = torch.zeros(4, device="cuda"), torch.zeros(2), np.zeros(2)
outside = open("outside.txt", "a")

def step():
    global array
    state.steps += 1
    state.seen.append(own.random())
    state.scratch["fresh"] = next(rows)
    state.scratch = {}
    random.random(), np.random.rand(), generator.random(), torch.rand(1), next(pairs)
    array += 1
    optimizer.zero_grad(set_to_none=True)
    loss = model(data).square().mean() + torch.rand((), device="cuda")
    loss.backward()
    optimizer.step()
    total.add_(loss.detach())
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
with torch.cuda.graph(graph):
    loss = step()
for number in range(20):
    data.normal_()
    state.steps += 1
    graph.replay()
    if number % 7 == 0:
        step()
    print(state.steps, loss.item(), total.sum().item(), len(state.seen), state.scratch)
    print(random.random(), np.random.rand(), own.random(), generator.random(), torch.rand(1))
    print(next(rows), next(pairs), torch.rand(1, device="cuda").item(), host.tolist(), array)
    outside.write("text")
    print(outside.tell())
print([p.sum().item() for p in model.parameters()], [p.grad is None for p in model.parameters()])
print([b.sum().item() for b in model.buffers()])
"""


TWO_GRAPHS = """
nets = [nn.Linear(4, 4).cuda() for _ in range(2)]
optimizers = [torch.optim.Adam(net.parameters(), lr=0.1, capturable=True) for net in nets]
scale = 1.0

def step(number):
    optimizers[number].zero_grad(set_to_none=True)
    loss = (nets[number](x) * scale + torch.randn_like(x)).square().mean()
    loss.backward()
    optimizers[number].step()
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step(0), step(1)
torch.cuda.current_stream().wait_stream(side)
other = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    first = step(0)
with torch.cuda.graph(other, pool=graph.pool()):
    second = step(1)
for number in range(35):
    scale = 1 - number / 100
    graph.replay()
    print(first.item(), [p.sum().item() for p in nets[0].parameters()])
    other.replay()
    print(second.item(), [p.sum().item() for p in nets[1].parameters()])
"""


@pytest.mark.parametrize("source", [STAYS, TWO_GRAPHS], ids=["everything", "two graphs differ"])
def test_a_program_behaves_as_without_check(tmp_path: Path, source: str) -> None:
    """With the values that it prints under `run`, where no code runs again."""
    (tmp_path / "script.py").write_text(HEAD + source)
    printed = []
    for command in ("run", "check"):
        (tmp_path / "outside.txt").unlink(missing_ok=True)
        arguments = (command, "--device", "simulated", "--format", "json", "script.py")
        done = run_cgtool(*arguments, cwd=tmp_path, timeout=120)
        assert done.returncode in (0, 1), done.stderr
        # What a program prints is not mixed with the report.
        lines = re.findall(r"^[\d\[].*$", done.stderr + done.stdout, re.M)
        printed.append(lines)
    assert len(printed[0]) > 60, printed
    assert printed[0] == printed[1]


def test_a_file_has_what_the_program_writes(tmp_path: Path) -> None:
    source = """
log = open("log.txt", "w")
calls = [0]
def step():
    calls[0] += 1
    log.write(f"call {calls[0]}\\n")
    return x * calls[0]
with torch.cuda.graph(graph):
    y = step()
for _ in range(3):
    graph.replay()
"""
    (tmp_path / "script.py").write_text(HEAD + source)
    done = run_cgtool("check", "--device", "simulated", "script.py", cwd=tmp_path, timeout=120)
    assert done.returncode == 1 and "`calls[0]` was 0, then 1" in done.stdout
    assert (tmp_path / "log.txt").read_text() == "call 1\n"


def test_what_is_entered_for_the_capture_is_entered_again(tmp_path: Path) -> None:
    _check(
        tmp_path,
        """
flags, calls = {"on": False}, [0]

@contextlib.contextmanager
def capturing():
    assert not flags["on"]
    flags["on"] = True
    yield
    flags["on"] = False

@contextlib.contextmanager
def capture(graph):
    with capturing(), torch.cuda.graph(graph):
        yield

def step():
    return x + 1 if flags["on"] else x + 2

def counted():
    calls[0] += 1
    return x * calls[0]  # <- python-scalar-frozen

with capturing():
    with torch.cuda.graph(graph):
        y = step()
other = torch.cuda.CUDAGraph()
with capture(other):
    z = counted()
third = torch.cuda.CUDAGraph()
with capturing():
    with torch.cuda.graph(third):
        w = step()
    third.replay()
for _ in range(3):
    graph.replay()
    other.replay()
""",
    )


def test_code_whose_context_is_over_is_not_run_again(tmp_path: Path) -> None:
    source = """
offset = [0]

class Shifted:
    def __enter__(self):
        offset[0] = 1
    def __exit__(self, *_):
        offset[0] = 0

def capture():
    global y
    with torch.cuda.graph(graph):
        y = x + offset[0]

with Shifted():
    capture()
graph.replay()
"""
    assert _not_run_again(tmp_path, source) == (
        "not run again: the code of 1 graph (it was captured in a context that is over)"
    )


def test_a_function_that_replays_may_hold_what_was_captured(tmp_path: Path) -> None:
    _check(
        tmp_path,
        """
scale = [1.0]

def captured(function, *args, **kwargs):
    with torch.cuda.graph(graph):
        out = function(*args, **kwargs)
    def run():
        graph.replay()
        return out
    return run

run = captured(lambda a, by: a * by[0], x, by=scale)  # <- python-scalar-frozen
for _ in range(3):
    run()
    scale[0] += 1.0
""",
    )


def _not_run_again(folder: Path, source: str) -> str:
    """What `check` says of the code that did not run again."""
    (folder / "script.py").write_text(HEAD + source)
    arguments = ("check", "--device", "simulated", "--format", "json", "script.py")
    done = run_cgtool(*arguments, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (said,) = (each for each in json.loads(done.stdout)["looked_at"] if "not run again" in each)
    return str(said)


def test_a_context_of_a_coroutine_is_not_entered_again(tmp_path: Path) -> None:
    source = """
import asyncio

class Session:
    async def __aenter__(self):
        return self
    async def __aexit__(self, *_):
        pass

async def main():
    async with Session():
        with torch.cuda.graph(graph):
            y = x + 1
    graph.replay()

asyncio.run(main())
"""
    assert "(its lines cannot be run by themselves)" in _not_run_again(tmp_path, source)


NOT_RUN = {
    "ends the process": ("if n[0] > 1: os._exit(9)", "outside of the process: _exit"),
    "runs another": ("if n[0] > 1: os.system('true')", "outside of the process: os.system"),
    "never ends": ("while n[0] > 1: pass", "it takes too long"),
    "raises": ("assert n[0] == 1, 'only once'", "it raised AssertionError: only once"),
    "is global": ("global n", "its lines cannot be run by themselves"),
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_code_that_cannot_run_again_is_said(tmp_path: Path, name: str) -> None:
    statement, reason = NOT_RUN[name]
    source = f"""
n = [1]
def capture():
    with torch.cuda.graph(graph):
        {statement}
        x.mul_(n[0])
capture()
n[0] = 2
graph.replay()
"""
    said = _not_run_again(tmp_path, source)
    assert said.startswith("not run again: the code of 1 graph (") and reason in said
