"""``cgtool annotate`` of a trace that PyTorch's profiler records in another process, compared with
what ``cgtool profile`` measures and with what the profiler says of the eager program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

MODEL = """
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

def build(device):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(512, 256, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step.model = model
    return step

def ranges(model):
    # Its path is that of the closure of `step`, as a capture has it.
    for path, module in model.named_modules(prefix="model"):
        opened = []
        def before(module, inputs, path=path, opened=opened):
            opened.append(record_function("module " + path))
            opened[-1].__enter__()
        def after(module, inputs, result, opened=opened):
            opened.pop().__exit__(None, None, None)
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

def traced(run, path):
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(path)

if __name__ == "__main__":
    step = build("cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    traced(graph.replay, "replays.json")
    ranges(step.model)
    traced(step, "eager.json")
"""
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def run(*command, folder):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [Path.cwd(), *sys.path]))}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("annotate")
    (folder / "model.py").write_text(MODEL)
    run("-m", "cgtool", "profile", "model.py:build", "-q", "--save", "model.cgt", folder=folder)
    run("-m", "cgtool", "run", "-q", "-o", "run.cgt", "model.py", folder=folder)
    # Last, because each run of the program writes the traces again.
    run("model.py", folder=folder)
    return folder


@pytest.fixture(scope="module")
def replays(folder):
    """The records of three replays, annotated."""
    arguments = ("replays.json", "--with", "model.cgt", "-o", "out.json", "--format", "json")
    report = json.loads(run("-m", "cgtool", "annotate", *arguments, folder=folder))
    # PyTorch numbers nodes from 2.12 on.
    assert report["how"] in ({how: report["records"]} for how in ("order", "node id"))
    assert report["launches"] == 3
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    return [each for each in events if "node" in each.get("args", {})]


def test_a_file_of_run_gives_the_same_lines(folder, replays):
    arguments = ("replays.json", "--with", "run.cgt", "-o", "run.json", "-q")
    run("-m", "cgtool", "annotate", *arguments, folder=folder)
    events = json.loads((folder / "run.json").read_text())["traceEvents"]
    of_run = [each["args"] for each in events if "node" in each.get("args", {})]
    for each, other in zip(of_run, replays, strict=True):
        assert each["op"] == other["args"]["op"]
        # A kernel of a backward has the line of its forward.
        line, forward = (each.get(key) for key in ("line", "forward line"))
        assert line or forward
        assert (line, forward) == tuple(other["args"].get(key) for key in ("line", "forward line"))


def test_times_by_op_are_those_of_profile(folder, replays):
    arguments = ("profile", "model.cgt", "--by", "op", "--format", "json")
    report = json.loads(run("-m", "cgtool", *arguments, folder=folder))
    (table,) = report["tables"]
    measured = {row["name"]: row["total_ns"] / 1000 for row in table["rows"]}
    shortest: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for each in replays:
        shortest[each["args"]["node"]].append((each["dur"], each["args"]["op"]))
    traced: Counter[str] = Counter()
    for times in shortest.values():
        time, op = min(times)
        traced[op.partition("::")[2].partition(".")[0]] += time
    assert set(traced) == set(measured)
    for op, time in traced.items():
        assert time == pytest.approx(measured[op], rel=0.1, abs=3)


def test_ops_and_modules_are_those_of_the_eager_program(folder, replays):
    """In eager, the profiler knows the ops and ranges that were open when a kernel was launched."""
    events = json.loads((folder / "eager.json").read_text())["traceEvents"]
    launches = {
        each["args"]["correlation"]: each
        for each in events
        if each.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in each["args"]
    }
    host = [each for each in events if each.get("cat") in ("cpu_op", "user_annotation")]
    work = [each for each in events if each.get("cat") in WORK]
    work = sorted(work, key=lambda each: each["ts"])[: len(work) // 3]
    ours = sorted(replays, key=lambda each: each["ts"])[: len(replays) // 3]
    assert [kernel(each) for each in work] == [kernel(each) for each in ours]
    modules = 0
    for eager, replay in zip(work, ours, strict=True):
        launch = launches[eager["args"]["correlation"]]
        around = [
            each["name"]
            for each in host
            if each["tid"] == launch["tid"]
            and each["ts"] <= launch["ts"] <= each["ts"] + each["dur"]
        ]
        assert replay["args"]["op"].partition(".")[0] in around
        open_modules = [name for name in around if name.startswith("module ")]
        if open_modules:
            modules += 1
            innermost = max(open_modules, key=len)
            assert innermost == "module " + replay["args"].get("module", "")
    assert modules >= 4 * 5  # each block has five kernels or more


def kernel(event):
    """Its name. In graphs the driver copies with kernels, and kinds of memory are unknown."""
    kind = re.match(r"(mem(?:cpy|set))", event["name"], re.IGNORECASE)
    return kind[1].lower() if kind else event["name"]
