"""Captures of the simulated device say what each op call read and wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cgtool.analysis.graph import overlap
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.model import capture_file
from cgtool.model.capture import Call, Capture, Graph
from cgtool.model.options import CaptureOptions
from cgtool.program.workload import Workload, WorkloadPart


def capture(build: Any, kind: str = "callable") -> Capture:
    """``build(device)`` returns a callable and its arguments."""
    device = SimulatedDevice("there is no GPU")
    with device.active():
        function, arguments = build("cuda")
        modules = {"": function} if isinstance(function, torch.nn.Module) else {}
        workload = Workload(
            "test", kind, (WorkloadPart("test", function, arguments, modules=modules),)
        )
        captured, _ = device.capture(workload, CaptureOptions(), lambda _text: None)
        return captured


def by_op(capture: Capture, graph: Graph) -> dict[str, Call]:
    """The last call of each op that has a node."""
    return {
        str(capture.origins[node.origin].op): graph.calls[node.call]
        for node in graph.nodes
        if node.origin is not None and node.call is not None
    }


def residual(device: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    table = torch.randn(10, 4, device=device)
    weight = torch.randn(4, 4, device=device)

    def function(rows: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.embedding(rows, table)
        y = torch.mm(x, weight).relu_()
        return torch.cat([y.view(2, 8), x.view(2, 8)])

    return function, (torch.tensor([1, 2, 3, 4], device=device),)


def test_a_small_function_by_hand() -> None:
    recorded = capture(residual)
    (graph,) = recorded.graphs
    calls = by_op(recorded, graph)
    embedding, mm = calls["aten::embedding"], calls["aten::mm"]
    relu, cat = calls["aten::relu_"], calls["aten::cat"]
    assert mm.reads[0] == embedding.writes[0]
    assert relu.reads == relu.writes == mm.writes
    assert cat.reads == (*relu.writes, *embedding.writes)
    assert len({*embedding.reads, *embedding.writes, *mm.reads, *mm.writes, *cat.writes}) == 6
    assert (embedding.read_bytes, embedding.written_bytes) == (4 * 4 * 4 + 4 * 8, 64)
    assert (mm.read_bytes, mm.written_bytes, mm.flops) == (128, 64, 2 * 4 * 4 * 4)
    assert (cat.read_bytes, cat.written_bytes, cat.flops) == (128, 128, None)
    assert {call.dtype for call in graph.calls} == {"float32"}


def trained(device: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model.to(device), (torch.randn(4, 8, device=device),)


def test_backward_reads_what_forward_wrote(tmp_path: Path) -> None:
    recorded = capture(trained)
    forward, backward = recorded.graphs
    for graph in recorded.graphs:
        assert len(graph.calls) == len({node.call for node in graph.nodes})
        assert all(call.writes for call in graph.calls)
    tanh = by_op(recorded, forward)["aten::tanh"]
    assert tanh.writes[0] in by_op(recorded, backward)["aten::tanh_backward"].reads
    # The first weight is read in forward, the second in both.
    read = {storage for call in forward.calls for storage in call.reads}
    assert read & {storage for call in backward.calls for storage in call.reads} - set(tanh.writes)
    capture_file.write(tmp_path / "a.cgt", recorded)
    assert capture_file.read(tmp_path / "a.cgt") == recorded


def test_gradients_of_a_layer_need_nothing_of_each_other() -> None:
    recorded = capture(trained)
    (overlaps,) = [
        overlap.find_overlap(recorded, index)
        for index, graph in enumerate(recorded.graphs)
        if graph.phase == "backward"
    ]
    assert overlaps.recorded and not overlaps.timed
    assert overlaps.barriers == overlaps.guessed == 0
    assert overlaps.needed_nodes < overlaps.length_nodes
    words = [overlap.sentence(recorded, overlaps, pair) for pair in overlaps.pairs]
    assert any(line.startswith("aten::mm at ") for line in words)


def branches(device: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    weights = [torch.randn(8, 8, device=device) for _ in range(3)]
    side = torch.cuda.Stream()

    def function(x: torch.Tensor) -> torch.Tensor:
        tanh = torch.mm(x, weights[0]).tanh()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            two = torch.mm(x, weights[1]).tanh()
        torch.cuda.current_stream().wait_stream(side)
        three = torch.mm(x, weights[2]).tanh()
        return tanh + two + three

    return function, (torch.randn(8, 8, device=device),)


def test_waits_between_streams_that_no_data_needs() -> None:
    recorded = capture(branches)
    overlaps = overlap.find_overlap(recorded, 0)
    assert (overlaps.length_nodes, overlaps.needed_nodes) == (8, 4)
    assert sum(pair.times for pair in overlaps.pairs) == 2
    assert any(pair.across for pair in overlaps.pairs)
    # Both streams' ends before the fork and the join, each to what comes next.
    assert overlaps.unneeded_edges == 3


@pytest.mark.parametrize("name", ["transformer", "two_streams", "convnet"])
def test_samples(name: str) -> None:
    names: dict[str, Any] = {}
    source = Path(__file__).parents[2] / "samples" / f"{name}.py"
    exec(compile(source.read_text(), str(source), "exec"), names)
    recorded = capture(names["build"])
    for index, graph in enumerate(recorded.graphs):
        assert all(call.writes for call in graph.calls)
        overlaps = overlap.find_overlap(recorded, index)
        # What the data needs, the capture's streams keep.
        assert overlaps.needed_nodes <= overlaps.length_nodes
        if name == "two_streams":
            assert not overlaps.pairs, "its branches run side by side already"
