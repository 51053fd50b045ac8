"""Nodes that run alone, on a GPU."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu

STREAMS = """
import torch


def forward_on_two_streams(joined):
    def build():
        weight = torch.randn(64, 64, device="cuda")
        side = torch.cuda.Stream()

        def forward(x):
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                y = (x @ weight).relu()
            z = x.sin()
            if joined:
                current.wait_stream(side)
            out = z + y
            current.wait_stream(side)
            y.record_stream(current)
            return out

        return forward, (torch.randn(32, 64, device="cuda"),)

    return build


joined, not_joined = forward_on_two_streams(True), forward_on_two_streams(False)
"""


@pytest.mark.parametrize(("name", "found"), [("joined", False), ("not_joined", True)])
def test_a_missing_edge_is_shown_by_another_order(tmp_path: Path, name: str, found: bool) -> None:
    file = tmp_path / "streams.py"
    file.write_text(STREAMS)
    command = [sys.executable, "-m", "cgtool", "verify", f"{file}:{name}", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert any("other orders that the edges allow" in each for each in report["looked_at"])
    races = [each for each in report["findings"] if each["code"] == "stream-race-in-capture"]
    assert len(races) == found, done.stderr
    for race in races:
        assert file.read_text().splitlines()[race["line"] - 1].strip() == "out = z + y"
        assert "another output" in race["reason"]


FAULTS = Path(__file__).with_name("faults.py")
LINES = FAULTS.read_text().splitlines()
MARK = re.compile(r"# <-(?: replay (\d))?$")
NAMES = [
    name
    for name, mark in re.findall(r"^def (\w+)\(\):$((?:\n(?: .*)?)*)", FAULTS.read_text(), re.M)
    if "# <-" in mark
]


@pytest.mark.parametrize("command", ["debug", "capture"])
@pytest.mark.parametrize("name", NAMES)
def test_the_node_that_fails_is_named(tmp_path: Path, name: str, command: str) -> None:
    arguments = ["--format", "json"]
    arguments += ["-o", str(tmp_path / "a.cgt")] if command == "capture" else []
    done = subprocess.run(
        [sys.executable, "-m", "cgtool", command, f"{FAULTS}:{name}", *arguments],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 4, (done.stdout, done.stderr)
    report = json.loads(done.stdout)
    findings = report["findings"] if command == "debug" else report["error"]["findings"]
    found = next((each for each in findings if each["code"] == "node-faults"), None)
    assert found is not None, (report, done.stderr)
    start = LINES.index(f"def {name}():")
    line = next(at for at in range(start, len(LINES)) if MARK.search(LINES[at]))
    assert found["line"] == line + 1, (found, done.stderr)
    replay = MARK.search(LINES[line])[1] or 3
    assert f"replay {replay}" in found["reason"] or name in ("compiled", "in_a_child_graph"), found
    if name == "in_a_child_graph":
        assert "of the body of node" in found["reason"], found


SET_CONDITION = """
typedef __device_builtin__ unsigned long long cudaGraphConditionalHandle;
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(
    cudaGraphConditionalHandle handle, unsigned int value);
extern "C" __global__ void set_condition(cudaGraphConditionalHandle handle, const bool* value) {
    cudaGraphSetConditional(handle, *value);
}
"""


def test_a_conditional_node_is_stepped_as_it_is_replayed() -> None:
    from cuda.bindings import driver as cu

    from tests.gpu.faults import being_captured, continue_after, driver_value, kernel

    function = cu.CUfunction(kernel("set_condition", SET_CONDITION).func.value)
    total, calls = torch.full((64,), 5.0, device="cuda"), torch.zeros((), device="cuda")
    context = driver_value(cu.cuCtxGetCurrent())
    one = cu.CUDA_MEMSET_NODE_PARAMS()
    one.dst, one.elementSize, one.width, one.height = total.data_ptr(), 4, 64, 1
    one.value = 0x3F800000  # 1.0

    def work() -> torch.Tensor:
        calls.add_(1)
        total.mul_(3)
        is_odd = calls % 2 == 1
        if torch.cuda.is_current_stream_capturing():
            stream = cu.CUstream(torch.cuda.current_stream().cuda_stream)
            graph, _ = being_captured(stream)
            handle = driver_value(cu.cuGraphConditionalHandleCreate(graph, context, 0, 0))
            values = (int(handle), is_odd.data_ptr()), (ctypes.c_uint64, ctypes.c_void_p)
            driver_value(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, values, 0))
            params = cu.CUgraphNodeParams()
            params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
            params.conditional.handle = handle
            params.conditional.type = cu.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
            params.conditional.size = 1
            params.conditional.ctx = context
            _, waits_for = being_captured(stream)
            added = cu.cuGraphAddNode(graph, waits_for, None, len(waits_for), params)
            body = params.conditional.phGraph_out[0]
            driver_value(cu.cuGraphAddMemsetNode(body, [], 0, one, context))
            continue_after(stream, driver_value(added))
        return total + calls

    stepper, results = _stepped_and_replayed(work, (total, calls))
    assert results[0] == results[1] == results[2] != []
    ((node, why),) = stepper.whole.items()
    assert why == (
        f"the driver copies no conditional node: nodes {node - 1} to {node} run in one launch"
    )


def test_a_child_graph_is_stepped_as_it_is_replayed() -> None:
    from cuda.bindings import driver as cu

    from cgtool.devices.cuda.stepping import CudaStepper
    from tests.gpu.faults import being_captured, continue_after, driver_value

    total = torch.full((64,), 5.0, device="cuda")
    inner = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(inner):
        total.mul_(3)
        total.add_(1)
    child = cu.CUgraph(inner.raw_cuda_graph())

    def work() -> torch.Tensor:
        total.sub_(2)
        if torch.cuda.is_current_stream_capturing():
            stream = cu.CUstream(torch.cuda.current_stream().cuda_stream)
            graph, waits_for = being_captured(stream)
            added = cu.cuGraphAddChildGraphNode(graph, waits_for, len(waits_for), child)
            continue_after(stream, driver_value(added))
        return total * 2

    stepper, results = _stepped_and_replayed(work, (total,))
    assert results[0] == results[1] == results[2] != []
    assert not stepper.whole
    bodies = [each for each in stepper._executables if isinstance(each, CudaStepper)]
    assert [body.count for body in bodies] == [2]


def _stepped_and_replayed(work, state):
    """A stepper of a graph; and what three replays give, three steps, and three replays again."""
    from cgtool.devices.cuda.stepping import CudaStepper

    work()
    before = [each.clone() for each in state]
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        result = work()
    graph.instantiate()
    stepper = CudaStepper(graph.raw_cuda_graph(), torch.cuda.Stream(), graph=graph)
    results = []
    for run in (graph.replay, stepper.step, graph.replay):
        for each, value in zip(state, before, strict=True):
            each.copy_(value)
        results.append([])
        for _ in range(3):
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            results[-1].append(result.tolist())
    return stepper, results
