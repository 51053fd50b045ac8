"""Times of nodes from the records of PyTorch's profiler, which name no node."""

from __future__ import annotations

from msgspec import structs

from cgtool.devices.cuda.profiler_times import Span, spans_of
from cgtool.model.capture import Edge, Function, Graph, KernelLaunch, Node
from cgtool.model.gpu_trace import Record
from tests.analysis.test_trace_match import GNU, MANGLED
from tests.builders import capture

FUNCTIONS = (Function("gemm"), Function(MANGLED))


def branched(*functions: int):
    """A node, and the others on a branch each."""
    nodes = [
        Node(at, "kernel", kernel=KernelLaunch(function, (1, 1, 1), (1, 1, 1)))
        for at, function in enumerate(functions)
    ]
    edges = tuple(Edge(0, node.id) for node in nodes[1:])
    graph = Graph("forward", "forward", nodes=tuple(nodes), edges=edges)
    return structs.replace(capture([graph]), functions=FUNCTIONS)


def records(*names: str) -> list[Record]:
    return [
        Record(0, "kernel", name, 1_000 + 100 * at, 1_050 + 100 * at, (0, 7))
        for at, name in enumerate(names)
    ]


def test_a_lambda_on_a_branch_as_the_profiler_demangles_it():
    (replays,) = spans_of(branched(0, 0, 1), [[records("gemm", GNU, "gemm")]])
    assert replays == [{0: Span(0, 50), 1: Span(200, 50), 2: Span(100, 50)}]


def test_equal_kernels_on_two_branches_have_no_time():
    (replays,) = spans_of(branched(0, 1, 1), [[records("gemm", GNU, GNU)]])
    assert replays == [{0: Span(0, 50)}]


def test_a_replay_of_other_kernels_has_no_times():
    (replays,) = spans_of(branched(0, 1), [[records("gemm", "other")]])
    assert replays == [{}]
