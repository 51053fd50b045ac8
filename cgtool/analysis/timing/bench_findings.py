"""Why a replay gains nothing, costs extra, or is too good to be true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cgtool.analysis.graph.places import short_op
from cgtool.findings.registry import code
from cgtool.model.capture import Capture, Frame, Graph
from cgtool.model.finding import Finding

GPU_BOUND_NO_GAIN = code("gpu-bound-no-gain")
REPLAY_EXTRA_FILL_KERNELS = code("replay-extra-fill-kernels")
SPEEDUP_TOO_GOOD = code("speedup-too-good")

_NO_GAIN = 1.1
_TINY = 8
"""Nodes of a graph in which two fills are seen."""
_MISSING = 0.8
_RANDOM = frozenset(
    (
        "native_dropout", "rand", "randn", "rand_like", "randn_like", "randint", "randint_like",
        "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "exponential_", "random_",
        "randperm", "multinomial", "cauchy_", "log_normal_", "geometric_",
    )
)  # fmt: skip


class Timed:
    """What a row of ``bench`` must tell: kept small, so that analyses do not import each other."""

    def __init__(
        self, phase: str, eager_ns: float, eager_host_ns: float, replay_ns: float, high: float
    ) -> None:
        self.phase, self.eager_ns, self.eager_host_ns = phase, eager_ns, eager_host_ns
        self.replay_ns, self.high = replay_ns, high


def look(capture: Capture, rows: Iterable[Timed]) -> tuple[Finding, ...]:
    """Findings of a capture that was timed."""
    found = [one for row in rows for one in _gain(row)]
    for graph in capture.graphs:
        found += [*_fills(capture, graph), *_missing(capture, graph)]
    return tuple(found)


def _gain(row: Timed) -> Iterator[Finding]:
    if row.high < _NO_GAIN and row.eager_host_ns < row.eager_ns:
        yield Finding(
            GPU_BOUND_NO_GAIN,
            f"{row.phase}: the GPU works for {row.eager_ns / 1e3:.0f} us in eager mode and "
            f"{row.replay_ns / 1e3:.0f} us in a replay, while the host needs only "
            f"{row.eager_host_ns / 1e3:.0f} us to launch it: launches are hidden already",
            phase=row.phase,
        )


def _op_names(capture: Capture, graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.origin is not None and (op := capture.origins[node.origin].op):
            yield short_op(op)


def _fills(capture: Capture, graph: Graph) -> Iterator[Finding]:
    random = [name for name in _op_names(capture, graph) if name in _RANDOM]
    if random and len(graph.nodes) <= _TINY:
        yield Finding(
            REPLAY_EXTRA_FILL_KERNELS,
            f"{graph.name} has {len(graph.nodes)} nodes and draws random numbers: two fills of "
            "seed and offset run before every replay",
            phase=graph.phase,
            evidence=(f"random: {', '.join(dict.fromkeys(random))}",),
        )


def _missing(capture: Capture, graph: Graph) -> Iterator[Finding]:
    eager = graph.eager_launches
    if not eager or len(graph.nodes) >= _MISSING * eager:
        return
    frames: tuple[Frame, ...] = ()
    if graph.eager_only:
        origin = capture.origins[graph.eager_only[0]]
        frames = tuple(capture.frames[index] for index in origin.frames)
    yield Finding(
        SPEEDUP_TOO_GOOD,
        f"{graph.name} has {len(graph.nodes)} nodes where an eager iteration launches {eager}: "
        "work is missing from the graph",
        frames,
        phase=graph.phase,
    )
