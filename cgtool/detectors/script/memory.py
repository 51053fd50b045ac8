"""Memory that the pools of a script's graphs take for nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.script.state import PoolId, WatchedGraph

CAPTURE_ORDER_WASTES_POOL = code("capture-order-wastes-pool")
LEAK_AFTER_FAILED_CAPTURE = code("leak-after-failed-capture")
MANY_GRAPHS_FOR_MANY_SHAPES = code("many-graphs-for-many-shapes")
PRIVATE_POOL_BLOAT = code("private-pool-bloat")

_WORTH = 16 << 20
"""Bytes below which nobody would act."""
_POOLS = 4
_SHAPES = 16


class Memory(Check):
    """Pools that could be shared, orders that waste, graphs for every shape, leaks."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._before: dict[PoolId, int] = {}
        self._growth: dict[PoolId, list[tuple[WatchedGraph, int]]] = defaultdict(list)
        self._failed: dict[tuple[Frame, ...], int] = defaultdict(int)

    def ended(self, graph: WatchedGraph) -> None:
        if graph.pool is None:
            return
        total = self.watch.machine.pool_bytes(graph.pool)
        self._growth[graph.pool].append((graph, total - self._before.get(graph.pool, 0)))
        self._before[graph.pool] = total

    def failed(self, graph: WatchedGraph, error: BaseException | None) -> None:
        self._failed[graph.frames] += 1
        if self._failed[graph.frames] == 2:
            self.watch.report(
                LEAK_AFTER_FAILED_CAPTURE,
                "a capture that failed is tried again: each attempt leaves its pool reserved",
                graph.frames,
                phase="script",
            )

    def finish(self) -> None:
        self._private()
        for pool, growth in self._growth.items():
            self._order(pool, growth)
        self._shapes()

    def _private(self) -> None:
        own = [one for one in self.watch.alive() if one.own_pool and one.part is None]
        sizes = [self._before.get(one.pool, 0) for one in own if one.pool is not None]
        spare = sum(sizes) - max(sizes, default=0) - sum(_kept(self.watch, one) for one in own)
        if len(own) >= _POOLS and spare >= _WORTH:
            self.watch.report(
                PRIVATE_POOL_BLOAT,
                f"{len(own)} graphs have pools of their own, {sum(sizes) >> 20} MiB together",
                own[-1].frames,
                evidence=(f"one pool would save about {spare >> 20} MiB",),
                phase="script",
            )

    def _order(self, pool: PoolId, growth: list[tuple[WatchedGraph, int]]) -> None:
        graphs = [one for one, _ in growth]
        if len(graphs) < 3 or any(one.part is not None for one in graphs):
            return
        total = sum(size for _, size in growth)
        largest = max(size for _, size in growth)
        waste = total - largest - sum(_kept(self.watch, one) for one in graphs)
        if growth[-1][1] == largest and waste >= _WORTH and waste * 4 >= total:
            self.watch.report(
                CAPTURE_ORDER_WASTES_POOL,
                f"the pool grows with each capture, to {total >> 20} MiB: the blocks of the small "
                "graphs do not serve the large ones",
                graphs[-1].frames,
                evidence=(f"largest first would take about {(total - waste) >> 20} MiB",),
                phase="script",
            )
        del pool

    def _shapes(self) -> None:
        by_place: dict[tuple[Frame, ...], list[WatchedGraph]] = defaultdict(list)
        for one in self.watch.alive():
            by_place[one.frames].append(one)
        for place, graphs in by_place.items():
            shapes = {tuple(read.shape for read in one.reads.values()) for one in graphs}
            if len(shapes) >= _SHAPES:
                self.watch.report(
                    MANY_GRAPHS_FOR_MANY_SHAPES,
                    f"{len(graphs)} graphs are captured here, for {len(shapes)} sets of shapes",
                    place,
                    phase="script",
                )


def _kept(watch: Any, graph: WatchedGraph) -> int:
    """Bytes of a graph's outputs, which every arrangement needs."""
    return sum(
        one.cell.bytes for one in graph.made.values() if not watch.machine.dead(one.cell.ref)
    )
