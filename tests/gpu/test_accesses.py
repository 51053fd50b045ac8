"""What op calls read and wrote, recorded on a real GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cgtool.analysis.graph import dependencies, overlap  # noqa: E402
from cgtool.analysis.graph.places import Places  # noqa: E402
from tests.gpu.test_capture import SAMPLES, capture, quiet  # noqa: E402

pytestmark = pytest.mark.gpu


def calls_of(captured, graph=0):
    """The calls of each op, in order, each once."""
    places, op_names = Places(captured), {}
    chosen_graph = captured.graphs[graph]
    for node in chosen_graph.nodes:
        if node.call is not None:
            op_names[node.call] = str(places.of(node).op)
    return [(op, chosen_graph.calls[call]) for call, op in op_names.items()]


@pytest.mark.parametrize("warmup_iters", [3, 0], ids=["warm-up", "in the capture"])
def test_a_chain_by_hand(warmup_iters):
    x, w = torch.randn(64, 32, device="cuda"), torch.randn(32, 16, device="cuda")
    # cuBLAS makes its handle at its first call, which no capture permits.
    torch.mm(x, w)
    captured = capture(
        lambda x: torch.cat([torch.mm(x, w).relu_(), x[:, :16]]), (x,), warmup_iters=warmup_iters
    )
    (mm_op, mm), (relu_op, relu), (cat_op, cat) = calls_of(captured)
    assert (mm_op, relu_op, cat_op) == ("aten::mm", "aten::relu_", "aten::cat")
    assert relu.reads == relu.writes == mm.writes
    assert cat.reads == (*mm.writes, mm.reads[0])
    assert (mm.read_bytes, mm.written_bytes) == (64 * 32 * 4 + 32 * 16 * 4, 64 * 16 * 4)
    assert mm.flops == 2 * 64 * 32 * 16
    assert cat.read_bytes == cat.written_bytes == 2 * 64 * 16 * 4


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_call_of_a_sample_is_known_and_its_data_keeps_the_order_that_it_needs(sample):
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.model.options import CaptureOptions
    from cgtool.program.load import load

    captured, _ = CudaDevice().capture(
        load(f"{sample}:build", device="cuda"), CaptureOptions(), quiet
    )
    for index, graph in enumerate(captured.graphs):
        assert all(node.call is not None for node in graph.nodes)
        assert all(call.writes for call in graph.calls)
        overlaps = overlap.find_overlap(captured, index)
        assert (overlaps.recorded, overlaps.guessed, overlaps.barriers) == (True, 0, 0)
        assert overlaps.needed_nodes <= overlaps.length_nodes


def test_calls_need_what_their_pointers_say():
    """Two calls of which one waits for the other by the record share memory by the arguments of
    their kernels too."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    x = torch.randn(32, 64, device="cuda")
    captured = capture(model.cuda(), (x,), {"": model})
    for index, graph in enumerate(captured.graphs):
        held = {node.call: set() for node in graph.nodes}
        for node in graph.nodes:
            pointers = node.kernel.pointers if node.kernel else ()
            held[node.call] |= {(pointer.allocation, pointer.tensor) for pointer in pointers}
        for node, sources in enumerate(dependencies.find_dependencies(captured, index).before):
            for source in sources:
                before, after = graph.nodes[source].call, graph.nodes[node].call
                if held[before] and held[after]:
                    assert held[before] & held[after], (graph.name, source, node)


def test_backward_reads_what_forward_wrote():
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()).cuda()
    captured = capture(model, (torch.randn(4, 16, device="cuda"),), {"": model})
    tanh = next(call for op, call in calls_of(captured) if op == "aten::tanh")
    backward = next(call for op, call in calls_of(captured, 1) if op == "aten::tanh_backward")
    assert set(tanh.writes) & set(backward.reads)


def test_recording_keeps_no_memory():
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).cuda()
    x = torch.randn(1024, 256, device="cuda")
    with torch.no_grad():
        captured = capture(model, (x,), {"": model})
    # Two results at a time: one block is read while the next is written.
    alive = [
        allocation
        for allocation in captured.memory.allocations
        if allocation.freed_at is None and allocation.label is None
    ]
    assert sum(allocation.bytes >= x.nbytes for allocation in alive) <= 1
