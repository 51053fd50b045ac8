"""``cgtool run --times`` against CUDA events around each replay, and against PyTorch's profiler."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from cgtool.model import capture_file
from cgtool.model.ledger import Ledger
from tests.gpu.test_run import output

pytestmark = pytest.mark.gpu

ENGINE = """
import json, sys
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
graphs, times = [], []
with torch.no_grad():
    for batch in (64, 512, 2048):
        x = torch.randn(batch, 1024, device="cuda")
        model(x)
        torch.cuda.synchronize()
        # One is instantiated by its first replay, and once more by hand.
        graph = torch.cuda.CUDAGraph(keep_graph=batch == 512)
        with torch.cuda.graph(graph):
            y = x
            for _ in range(4):
                y = model(y)
        graphs.append((graph, x, y))
    matrix = torch.randn(2048, 2048, device="cuda")
    for step in range(40):
        for number, (graph, _, _) in enumerate(graphs):
            torch.cuda._sleep(400_000)  # the launch is complete before its work begins
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            times.append((number, begin, end))
            matrix = matrix @ matrix * 1e-3
        if step == 20:
            graphs[1][0].instantiate()
torch.cuda.synchronize()
times_ns = [[], [], []]
for number, begin, end in times:
    times_ns[number].append(begin.elapsed_time(end) * 1e6)
print("EVENTS", json.dumps(times_ns))
"""

WITHOUT_CUPTI = """
import torch
import cgtool.devices.cuda.replay_times as replay_times
from cgtool.devices.cuda.cupti import CuptiBusy

def busy(part):
    raise CuptiBusy("another tool in this process has subscribed to CUPTI")

replay_times.GpuTimes = busy
"""

PROFILER = """
import json, runpy, sys
import torch
from torch.profiler import ProfilerActivity, profile

activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(activities=activities) as profiled:
    runpy.run_path(sys.argv[1])
events = profiled.profiler.kineto_results.events()
launches = {event.correlation_id() for event in events if "GraphLaunch" in event.name()}
sums = {True: 0, False: 0}
for event in events:
    if event.device_type() == torch._C._autograd.DeviceType.CUDA:
        sums[event.correlation_id() in launches] += event.duration_ns()
print("PROFILER", json.dumps(sums[True] / sum(sums.values())))
"""

PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.zeros(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
for part in range(2):
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
    names = [event.name() for event in profiled.profiler.kineto_results.events()]
    print("kernels", sum("elementwise" in name for name in names))
"""

HELD_GIL = """
import ctypes, re, threading
import torch
x = torch.zeros(1 << 16, device="cuda")
torch.cuda.synchronize()
library = re.search(r"(/\\S*libcudart\\S*)", open("/proc/self/maps").read())[1]
runtime = ctypes.PyDLL(library)  # its functions are called with the GIL held

def fill():
    for _ in range(3000):
        runtime.cudaMemsetAsync(
            ctypes.c_void_p(x.data_ptr()), 0, ctypes.c_size_t(64), ctypes.c_void_p(0)
        )

def add():
    for _ in range(3000):
        x.add_(1)

threads = [threading.Thread(target=target) for target in (fill, fill, add, add)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
torch.cuda.synchronize()
"""


def timed(text: str, folder: Path) -> tuple[Ledger, str]:
    """The ledger of a program that was run with ``--times``, and what it printed."""
    (folder / "program.py").write_text(textwrap.dedent(text))
    run = ("-m", "cgtool", "run", "--times", "-o", "run.cgt", "program.py")
    printed = output(*run, folder=folder)
    ledger = capture_file.read(folder / "run.cgt").ledger
    assert ledger is not None
    return ledger, printed


def after(mark: str, printed: str) -> Any:
    return json.loads(printed.partition(f"{mark} ")[2])


def compare(ledger: Ledger, printed: str, every: int) -> None:
    """Every so many replays of each graph are timed. Events take some microseconds themselves."""
    for graph, times_ns in zip(ledger.graphs, after("EVENTS", printed), strict=True):
        assert graph.timed_replays == len(times_ns[::every])
        gpu_ns, events_ns = graph.replay_gpu_ns / graph.timed_replays, mean(times_ns[::every])
        assert abs(gpu_ns - events_ns) < 10_000 + 0.02 * events_ns


def test_each_replay_takes_as_long_as_between_events_and_the_share_is_the_profilers(
    tmp_path: Path,
) -> None:
    ledger, printed = timed(ENGINE, tmp_path)
    assert ledger.lost == ()
    compare(ledger, printed, every=1)
    (tmp_path / "profiler.py").write_text(PROFILER)
    share = after("PROFILER", output("profiler.py", "program.py", folder=tmp_path))
    assert ledger.graphs_gpu_ns is not None
    assert ledger.gpu_ns is not None
    assert abs(ledger.graphs_gpu_ns / ledger.gpu_ns - share) < 0.02


def test_events_take_the_place_of_cupti(tmp_path: Path) -> None:
    ledger, printed = timed(WITHOUT_CUPTI + ENGINE, tmp_path)
    assert "another tool" in ledger.lost[0]
    assert ledger.gpu_ns is None
    compare(ledger, printed, every=16)


def test_the_programs_own_profiler_comes_first(tmp_path: Path) -> None:
    ledger, printed = timed(PROFILED, tmp_path)
    assert printed.splitlines() == ["kernels 10", "kernels 10"]
    assert "profiler" in ledger.lost[0]
    assert ledger.graphs[0].replays == 220
    assert ledger.graphs[0].timed_replays == 200


def test_threads_that_launch_with_the_gil_held_do_not_wait_for_ever(tmp_path: Path) -> None:
    ledger, _ = timed(HELD_GIL, tmp_path)
    assert ledger.processes[0].other_gpu_ns
