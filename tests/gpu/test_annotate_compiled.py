"""``cgtool annotate`` of traces of compiled training: many graphs, forward and backward, of each of
which the profiler's own ranges say which one was launched."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cgtool.model import capture_file
from cgtool.model.capture import Capture
from tests.gpu.test_run import output

pytestmark = pytest.mark.gpu

TRAINED = """
import os, sys
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        h = nn.functional.gelu(self.up(self.norm(x)))
        return x + 0.5 * self.down(h)

def whole():
    model = nn.Sequential(*(Block() for _ in range(3)))
    return model, torch.compile(model, mode="reduce-overhead", dynamic=False)

def by_block():
    # The blocks have one compiled code and a graph each, all with the same kernels.
    model = nn.Sequential(*(Block() for _ in range(3)))
    for block in model:
        block.compile(mode="reduce-overhead", dynamic=False)
    return model, model

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x) * 2

def broken():
    model = Broken()
    return model, torch.compile(model, mode="reduce-overhead", dynamic=False)

kind, file = sys.argv[1:]
rank = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(rank)
torch.manual_seed(0)
model, compiled = globals()[kind]()
model.cuda()
activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
profiler = profile(activities=activities)
for step in range(16):
    torch.compiler.cudagraph_mark_step_begin()
    # Not in the order of their capture, which is 512, 128, 32.
    rows = (512, 128, 32)[step % 3] if step < 9 else (32, 32, 512, 128, 512, 128, 32)[step - 9]
    loss = compiled(torch.full((rows, 64), 0.1 * step, device="cuda")).square().mean()
    if step == 11:
        # The trace begins in the middle of a step.
        torch.cuda.synchronize()
        profiler.start()
    loss.backward()
    model.zero_grad()
torch.cuda.synchronize()
profiler.stop()
profiler.export_chrome_trace(file.replace("RANK", str(rank)))
"""
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
REGION, BACKWARD = "Torch-Compiled Region: ", "CompiledFunctionBackward"


class Launched(NamedTuple):
    """A launch of a graph in an annotated trace."""

    ranges: list[str]
    """Of the profiler, around the call that launched it, outermost first."""
    records: list[dict[str, Any]]
    """The arguments of what it ran."""

    def graphs(self) -> set[str]:
        """The names of the graphs that cgtool says it may be of."""
        # Of a run of several processes, a name ends with ", process 1".
        nodes = (re.split(r", (?!process )", each.get("node", "")) for each in self.records)
        names = {name for some in nodes for name in some}
        return {name.rpartition("/")[0] for name in names if "/" in name}


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With code from the cache of another run, some nodes have no module."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def launches(trace: Path) -> list[Launched]:
    events = json.loads(trace.read_text())["traceEvents"]
    timed = [each for each in events if each.get("ph") == "X"]
    host = [each for each in timed if each.get("cat") in ("cpu_op", "user_annotation")]
    # A call of the runtime, and the driver's call in it, have one number.
    calls = {
        each["args"]["correlation"]: each
        for each in timed
        if str(each.get("name")).endswith("GraphLaunch")
    }
    work = [each for each in timed if each.get("cat") in WORK]
    host.sort(key=lambda each: each["ts"])
    found = []
    for number, call in sorted(calls.items(), key=lambda item: item[1]["ts"]):
        ranges = [
            each["name"]
            for each in host
            if each["tid"] == call["tid"] and each["ts"] <= call["ts"] <= each["ts"] + each["dur"]
        ]
        records = [each["args"] for each in work if each["args"].get("correlation") == number]
        if records:
            found.append(Launched(ranges, records))
    return found


def annotated(
    kind: str, folder: Path, *command: object, ranks: int = 1
) -> tuple[Capture, list[list[Launched]]]:
    """The graphs of one process, and the launches in the traces of another one of each rank."""
    (folder / "program.py").write_text(TRAINED)
    output("-m", "cgtool", "run", "-q", "-o", "run.cgt", *command, "program.py", kind,
           "recorded-RANK.json", folder=folder)  # fmt: skip
    starter = command[2:] if command else ()  # after `--` and the name of Python
    output(*starter, "program.py", kind, "plain-RANK.json", folder=folder)
    found = []
    for rank in range(ranks):
        report = json.loads(
            output("-m", "cgtool", "annotate", f"plain-{rank}.json", "--with", "run.cgt",
                   "-o", f"joined-{rank}.json", "--format", "json", folder=folder)
        )  # fmt: skip
        # PyTorch numbers nodes from 2.12 on.
        assert set(report["how"]) <= {"order", "neighbors"} or set(report["how"]) == {"node id"}
        found.append(launches(folder / f"joined-{rank}.json"))
        assert sum(len(each.records) for each in found[-1]) == report["records"]
    return capture_file.read(folder / "run.cgt"), found


def keys(capture: Capture) -> dict[str, str]:
    """What ``torch.compile`` calls a graph, by cgtool's name of it."""
    assert capture.ledger is not None
    return {
        capture.graphs[entry.graph].name: entry.key
        for entry in capture.ledger.graphs
        if entry.graph is not None
    }


def follows_the_profiler(
    capture: Capture, found: list[Launched], *, equal: bool = False
) -> Counter[str]:
    """How often each graph was launched, after a look whether the profiler says the same.

    ``equal``: a launch may be of several graphs of one code, which nothing tells apart."""
    key_of, seen = keys(capture), Counter[str]()
    for launch in found:
        own = {key_of[name] for name in launch.graphs()}
        assert equal or len(own) == 1, own
        if any(BACKWARD in name for name in launch.ranges):
            assert all(key.endswith("backward") for key in own), (own, launch.ranges)
        else:
            regions = [name for name in launch.ranges if name.startswith(REGION)]
            assert f"{regions[-1].removeprefix(REGION)} forward" in own
        seen[" or ".join(sorted(own))] += 1
    return seen


def test_three_shapes_in_another_order(tmp_path: Path) -> None:
    capture, (found,) = annotated("whole", tmp_path)
    # The backward pass of a step with 512 rows, then steps with 128, 512, 128 and 32.
    assert follows_the_profiler(capture, found) == {
        "0/0 forward": 1, "0/0 backward": 2, "0/1 forward": 2, "0/1 backward": 2,
        "0/2 forward": 1, "0/2 backward": 1,
    }  # fmt: skip
    lines = (tmp_path / "program.py").read_text().splitlines()
    for launch in found:
        for record in launch.records:
            # Inductor names the line of the forward pass for its backward code too.
            number = int(record["line"].partition("program.py:")[2].split()[0])
            assert lines[number - 1].strip().startswith(("h = ", "return x"))
            assert record["module"][:1] in "012"


def test_graphs_between_graph_breaks(tmp_path: Path) -> None:
    """Two pieces of the same kernels, but for a multiplication."""
    capture, (found,) = annotated("broken", tmp_path)
    seen = follows_the_profiler(capture, found)
    assert sum(seen.values()) == 2 * (1 + 2 * 4)
    assert len(seen) == 2 * 2 * 3


def test_equal_graphs_of_blocks(tmp_path: Path) -> None:
    """Without ids, nothing tells them apart; as they run one code, they have the same lines: those
    of a block are of one key, and the first step in the trace has nothing before it that says which
    block comes first."""
    capture, (found,) = annotated("by_block", tmp_path)
    seen = follows_the_profiler(capture, found, equal=True)
    assert sum(seen.values()) == 3 * (1 + 2 * 4)


def test_each_rank_of_torchrun(tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    command = ("--", "python", "-m", "torch.distributed.run", "--nproc-per-node", "2")
    capture, found = annotated("whole", tmp_path, *command, ranks=2)
    for rank in range(2):
        assert len(follows_the_profiler(capture, found[rank])) == 6
