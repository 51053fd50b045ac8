"""`cgtool check ENTRY` runs the code from other host state: what it reports, and what stays."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.forked_workers import run_cgtool

HEAD = """\
import itertools, random, sys, time
import numpy as np
import torch

def build(device):
    x = torch.ones(4, device=device)
    engine = Engine(device)
    return engine.step, (x,)

class Engine:
    def __init__(self, device):
        self.device = device
        self.calls = 0
        self.prepare()

    def prepare(self):
        pass

"""


def _check(folder: Path, body: str, timeout: float = 120) -> list[dict[str, Any]]:
    """The errors and warnings for a class with this body."""
    lines = "".join(f"    {line}\n" if line else "\n" for line in body.strip().splitlines())
    (folder / "model.py").write_text(HEAD + lines)
    arguments = ("check", "model.py:build", "--device", "simulated", "--format", "json")
    done = run_cgtool(*arguments, cwd=folder, timeout=timeout)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)["findings"]
    return [each for each in found if each["severity"] != "note"]


def _texts(finding: dict[str, Any]) -> str:
    return " ".join([finding["reason"], *finding["evidence"]])


LATE = """
def step(self, x):
    self.calls += 1
    return x * 2 if self.calls < 500 else x + 1
"""
SCHEDULE = """
def step(self, x):
    self.calls += 1
    return x * (0.1 if self.calls < 500 else 0.01)
"""
EVERY_CALL = """
def step(self, x):
    self.calls += 1
    return x * self.calls
"""
ITERATOR = """
def prepare(self):
    self.scales = iter([1.0] * 20 + [2.0] * 5000)

def step(self, x):
    return x * next(self.scales)
"""
NESTED_ITERATOR = """
def prepare(self):
    self.pairs = zip(itertools.count(), itertools.cycle([1.0, 2.0]))

def step(self, x):
    return x * next(self.pairs)[1]
"""


@pytest.mark.parametrize(
    ("body", "code", "line", "texts"),
    [
        (LATE, "control-flow-frozen", 3, ["`calls` was ", ", then "]),
        (SCHEDULE, "cpu-state-step-counter", 3, ["`calls` was ", "got 0.1, then 0.01"]),
        (EVERY_CALL, "cpu-state-step-counter", 3, ["`calls` was 1, then 2", "aten::mul"]),
        (ITERATOR, "python-scalar-frozen", 5, ["`scales` moves on", "got 1.0, then 2.0"]),
        (NESTED_ITERATOR, "python-scalar-frozen", 5, ["`pairs` moves on"]),
    ],
    ids=["late", "schedule", "every call", "iterator", "nested iterator"],
)
def test_a_cause_is_named(
    tmp_path: Path, body: str, code: str, line: int, texts: list[str]
) -> None:
    (finding,) = _check(tmp_path, body)
    assert (finding["code"], finding["line"]) == (code, HEAD.count("\n") + line), finding
    assert all(text in _texts(finding) for text in texts), finding


@pytest.mark.parametrize(
    "draw",
    [
        "random.random()",
        "random.randint(0, 9)",
        "np.random.rand()",
        "self.own.random()",
        "self.generator.uniform()",
        "torch.rand(()).item()",
    ],
)
def test_numbers_that_are_drawn(tmp_path: Path, draw: str) -> None:
    body = f"""
def prepare(self):
    self.own, self.generator = random.Random(3), np.random.default_rng(3)

def step(self, x):
    return x * {draw}
"""
    (finding,) = _check(tmp_path, body)
    assert (finding["code"], finding["line"]) == ("rng-frozen-seed", HEAD.count("\n") + 5)


def test_a_rare_draw_decides(tmp_path: Path) -> None:
    body = """
def step(self, x):
    return x.exp() if random.random() < 1e-9 else x * 2
"""
    (finding,) = _check(tmp_path, body)
    assert (finding["code"], finding["line"]) == ("rng-frozen-seed", HEAD.count("\n") + 2)


@pytest.mark.parametrize(
    "clock", ["time.time()", "time.monotonic()", "time.time_ns() / 1e9", "time.localtime().tm_yday"]
)
def test_the_clock(tmp_path: Path, clock: str) -> None:
    body = f"""
def prepare(self):
    self.began = {clock}

def step(self, x):
    return x.exp() if {clock} - self.began > 3600 or {clock} < self.began else x * 2
"""
    if "yday" in clock:
        body = body.replace("> 3600", ">= 1")
    (finding,) = _check(tmp_path, body)
    assert finding["code"] == "control-flow-frozen", finding
    assert "at another time" in finding["reason"]


def test_two_causes_have_a_path_each(tmp_path: Path) -> None:
    body = """
def prepare(self):
    self.options = {"step": 0}

def step(self, x):
    self.calls += 1
    self.options["step"] += 1
    y = x * (1.0 if self.calls < 500 else 2.0)
    return y + (1.0 if self.options["step"] < 700 else 2.0)
"""
    findings = _check(tmp_path, body)
    lines = {each["line"] - HEAD.count("\n"): _texts(each) for each in findings}
    assert sorted(lines) == [7, 8]
    assert "`calls`" in lines[7] and "step" not in lines[7]
    assert "`options['step']`" in lines[8] and "calls" not in lines[8]


def test_a_cause_of_two_items(tmp_path: Path) -> None:
    body = """
def prepare(self):
    self.tokens = 0

def step(self, x):
    self.calls += 1
    self.tokens += 1
    return x.exp() if self.calls > 50 and self.tokens > 50 else x * 2
"""
    (finding,) = _check(tmp_path, body)
    assert finding["code"] == "control-flow-frozen"
    assert "`calls` was" in _texts(finding) and "`tokens` was" in _texts(finding)


HARMLESS = """
def prepare(self):
    self.log, self.names, self.last = [], {}, None
    self.own = random.Random(1)
    self.rows = iter(range(10**6))
    self.total = torch.zeros(())
    self.best = float("nan")

def step(self, x):
    self.calls += 1
    self.log.append(self.calls)
    self.names[self.calls] = time.time()
    self.last = self.own.random()
    next(self.rows)
    self.total += 1
    random.random(), np.random.rand()
    if self.calls % 100 == 0:
        self.log.clear()
    return x * 2
"""
FAR = {
    "raises": """
def prepare(self):
    self.table = list(range(40))

def step(self, x):
    self.calls += 1
    self.table[self.calls]
    return x * 2
""",
    "loops": """
def step(self, x):
    self.calls += 1
    total = 0
    for number in range(self.calls):
        total += number
    return x * 2
""",
    "never ends": """
def step(self, x):
    self.calls += 1
    while self.calls > 1000:
        pass
    return x * 2
""",
    "exits": """
def step(self, x):
    self.calls += 1
    if self.calls > 1000:
        sys.exit(3)
    return x * 2
""",
    "fills memory": """
def step(self, x):
    self.calls += 1
    kept = bytes(min(self.calls, 10**9))
    return x * 2
""",
}


def test_state_that_matters_to_nothing(tmp_path: Path) -> None:
    assert _check(tmp_path, HARMLESS) == []


@pytest.mark.parametrize("name", FAR)
def test_code_that_cannot_run_far(tmp_path: Path, name: str) -> None:
    began = time.monotonic()
    assert _check(tmp_path, FAR[name]) == []
    assert time.monotonic() - began < 60


STAYS = """
def prepare(self):
    self.own, self.generator = random.Random(3), np.random.default_rng(3)
    self.rows, self.pairs = itertools.count(), zip(itertools.count(), itertools.cycle("ab"))
    self.scaler_state = {}
    self.buffer = torch.zeros(4, device=self.device)
    self.weight = torch.ones(4, device=self.device, requires_grad=True)
    self.optimizer = torch.optim.SGD([self.weight], lr=0.5, momentum=0.5)
    self.host, self.array = torch.zeros(4), np.zeros(4)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)

def state(self):
    drawn = [self.own.random(), self.generator.random(), random.random(), np.random.rand()]
    tensors = [self.buffer, self.weight, self.weight.grad, self.host, torch.rand(1)]
    moments = self.optimizer.state[self.weight]["momentum_buffer"]
    return [
        self.calls, drawn, next(self.rows), next(self.pairs), self.scaler_state,
        self.array.tolist(), [each.tolist() for each in [*tensors, moments]],
        open("log.txt").read() if self.calls > 300 else None,
    ]

def step(self, x):
    self.calls += 1
    self.own.random(), self.generator.random(), random.random(), np.random.rand()
    next(self.rows), next(self.pairs), torch.rand(1)
    # Another object with each call, which the call fills.
    self.scaler_state["step"] = self.calls
    self.scaler_state = {}
    self.buffer.add_(1)
    self.host.add_(1)
    self.array += 1
    if self.calls > 300:
        open("log.txt", "a").write("text")
    (self.weight * x).sum().backward()
    self.optimizer.step()
    if time.time() < 0:
        raise RuntimeError
    return self.weight.detach() * (1.0 if self.calls < 50 else 2.0)
"""
DRIVER = """
import json, sys
from functools import partial
import torch
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.observe.annotations import Annotations
from cgtool.program.reach import Reachable
from cgtool.recapture.experiment import Experiment
from cgtool.recapture.host_state import HostState
from model import Engine

with SimulatedDevice("test").active():
    x = torch.ones(4, device="cuda")
    engine = Engine("cuda")
    run = partial(engine.step, x)
    engine.step(x)
    state = HostState(lambda: Reachable([("", engine), ("", Engine.step)]))
    if sys.argv[1] == "plain":
        run(), run()
    else:
        outcome = Experiment(run, state, {}, Annotations(), set()).compare()
        assert any("calls" in item.path for each in outcome.caused for item in each.items)
    print(json.dumps(engine.state()))
"""


def test_nothing_of_it_stays(tmp_path: Path) -> None:
    """After it, everything is as after two plain iterations."""
    lines = "".join(f"    {line}\n" if line else "\n" for line in STAYS.strip().splitlines())
    (tmp_path / "model.py").write_text(HEAD + lines)
    (tmp_path / "driver.py").write_text(DRIVER)
    states = []
    for how in ("plain", "experiment"):
        command = [sys.executable, "driver.py", how]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        states.append(json.loads(done.stdout))
    assert states[0] == states[1]
    assert not (tmp_path / "log.txt").exists()


ODD_VALUES = """
def prepare(self):
    self.flag = torch.tensor([True, False])
    self.grows = torch.zeros(2)
    self.phase = torch.zeros(2, dtype=torch.complex64)
    self.arrays = [np.zeros(3, dtype=kind) for kind in ("uint8", "bool", ">f4", "datetime64[D]")]
    self.names = np.array(["a", "b"])

def step(self, x):
    self.flag.logical_not_()
    self.grows.resize_(self.grows.numel() + 1)
    self.phase.add_(1j)
    for array in self.arrays:
        array[0] = ~array[0] if array.dtype == bool else array[0] + 1
    self.names[0] = "b" if self.names[0] == "a" else "a"
    return x * 2
"""
DISTINCT_DRAWS = """
def step(self, x):
    self.chosen = random.sample(range(1000), 5)
    return x * 2
"""


@pytest.mark.parametrize("body", [ODD_VALUES, DISTINCT_DRAWS])
def test_host_state_that_cannot_be_moved_further(tmp_path: Path, body: str) -> None:
    assert _check(tmp_path, body, timeout=30) == []
