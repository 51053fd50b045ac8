"""The data of the page: a capture's nodes, edges and allocations as columns, and all that is
said about it as a tree of text.

Sentences, findings, bounds and critical paths are those of ``analysis``, as the commands print
them. The page adds up columns and lays them out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

from cgtool.analysis.graph.overlap import unneeded_edges
from cgtool.analysis.graph.places import WORK, Attribute, NodeDescriber, part_of
from cgtool.analysis.graph.schedule import CriticalPath, critical_path
from cgtool.analysis.pools import UNNAMED_HOLDER, pool_rows
from cgtool.analysis.stepped import values_text
from cgtool.analysis.timing.profile import ProfileReport, has_times, profile_report
from cgtool.analysis.timing.roofline import MEANS, occupancy, utilizations
from cgtool.html.answer import answer
from cgtool.html.packing import Interned, Packer
from cgtool.model.capture import Allocation, Capture, Frame, Node, Pool, Source
from cgtool.render.labels import attribute_rows

BOUNDS = (*MEANS,)
"""By their number in the column ``bound``."""
_NOT_SAVED = "an older cgtool wrote this capture, without its source"


def pack(capture: Capture, name: str, prefix: str, packer: Packer) -> dict[str, Any]:
    """The tree of a capture, called ``name``; its columns are added to ``packer``, each with
    ``prefix`` before its name."""
    return _Content(capture, prefix, packer).tree(name)


class _Content:
    def __init__(self, capture: Capture, prefix: str, packer: Packer) -> None:
        self._capture, self._prefix, self._packer = capture, prefix, packer
        self._describer = NodeDescriber(capture)
        self._frames = Interned()
        self._nodes = list(chain.from_iterable(graph.nodes for graph in capture.graphs))
        self._timed = has_times(capture)

    def tree(self, name: str) -> dict[str, Any]:
        capture = self._capture
        report = profile_report(capture, tables=False) if self._timed else None
        paths = [row.path for row in report.paths] if report else self._paths()
        tree = {
            "name": name,
            "spec": capture.entry.spec,
            "simulated": capture.environment.simulated,
            "timed": self._timed,
            "total": report.total_ns if report else None,
            "work": list(WORK),
            **answer(capture, report, self._frame),
            "graphs": self._graphs(report),
            "streams": [stream.name for stream in capture.streams],
            "bounds": [[bound, MEANS[bound]] for bound in BOUNDS],
            "types": {module.path: module.type for module in capture.modules},
            **self._node_columns(),
            "origins": self._origins(),
            "arguments": [
                [[argument.name, argument.value] for argument in each.arguments]
                for each in capture.argument_lists
            ],
        }
        if capture.memory.pools:
            tree |= pack_memory(capture, self._prefix, self._packer)
        self._edge_columns(report)
        self._path_columns(paths)
        self._utilization_columns()
        return {**tree, **self._files()}

    def _paths(self) -> list[CriticalPath]:
        top = (at for at, graph in enumerate(self._capture.graphs) if graph.parent is None)
        return [critical_path(self._capture, at) for at in top]

    def _frame(self, frame: Frame | None) -> int:
        """The number of a frame in the page; -1 for none."""
        return -1 if frame is None else self._frames.index((frame.file, frame.line, frame.function))

    def _graphs(self, report: ProfileReport | None) -> list[dict[str, Any]]:
        """Every graph, with where its nodes are among all nodes; edges likewise. ``replay``: the
        time of a replay without the profiler, where the nodes were timed under it."""
        replays = {line.graph: line.replay_ns for line in report.replays} if report else {}
        rows, node, edge = [], 0, 0
        for at, graph in enumerate(self._capture.graphs):
            rows.append(
                {
                    "name": graph.name,
                    "phase": graph.phase,
                    "callable": graph.callable,
                    "part": part_of(self._capture, graph),
                    "parent": graph.parent,
                    "replay": replays.get(at),
                    "nodes": [node, node := node + len(graph.nodes)],
                    "edges": [edge, edge := edge + len(graph.edges)],
                }
            )
        return rows

    def _node_columns(self) -> dict[str, Any]:
        nodes, describer = self._nodes, self._describer
        titles, types, launches = Interned(), Interned(), Interned()
        launch_of: dict[tuple[Attribute, ...], int] = {}

        def launch(node: Node) -> int:
            """Equal attributes are the same object: the describer knows them."""
            attributes = describer.attributes(node)
            if attributes not in launch_of:
                rows = zip(attributes, attribute_rows(attributes), strict=True)
                named = ((label or each.field.name, text) for each, (label, text) in rows)
                launch_of[attributes] = launches.index(tuple(named))
            return launch_of[attributes]

        self._integers("type", [types.index(node.type) for node in nodes])
        self._integers("origin", [node.origin for node in nodes], rising=True)
        self._integers("stream", [node.stream for node in nodes])
        self._integers(
            "kernel", [None if node.kernel is None else node.kernel.function for node in nodes]
        )
        self._integers("title", [titles.index(describer.title(node)) for node in nodes])
        self._integers("launch", [launch(node) for node in nodes])
        if self._timed:
            self._integers("start", [node.start_ns for node in nodes], rising=True)
            self._integers("duration", [node.duration_ns for node in nodes])
        self._call_columns()
        self._pointer_columns()
        self._value_columns()
        return {
            "nodeTypes": types.values,
            "titles": titles.values,
            "launches": launches.values,
            "kernels": list(zip(describer.short_kernels, describer.full_kernels, strict=True)),
            "values": {
                str(at): [[f"{each.name} {each.type}", values_text(each)] for each in node.values]
                for at, node in enumerate(nodes)
                if node.values
            },
            "bodies": {str(at): node.body for at, node in enumerate(nodes) if node.body},
            "tensors": [
                [tensor.name, tensor.bytes, tensor.dtype, list(tensor.shape)]
                for tensor in self._capture.memory.tensors
            ],
        }

    def _call_columns(self) -> None:
        """By node: the number of its list of arguments."""
        lists: list[int | None] = []
        for graph in self._capture.graphs:
            calls = graph.calls
            for node in graph.nodes:
                has_call = node.call is not None and node.call < len(calls)
                lists.append(calls[node.call].arguments if has_call else None)  # type: ignore[index] # has_call
        if any(each is not None for each in lists):
            self._integers("arguments", lists, rising=True)

    def _pointer_columns(self) -> None:
        """What kernels' arguments point into: allocations as even numbers, tensors as odd ones; by
        node, where its part of them ends."""
        pointed: list[int] = []
        ends: list[int] = []
        for node in self._nodes:
            if node.kernel is not None and node.kernel.pointers:
                known: dict[int, None] = {}
                for pointer in node.kernel.pointers:
                    if pointer.allocation is not None:
                        known[2 * pointer.allocation] = None
                    if pointer.tensor is not None:
                        known[2 * pointer.tensor + 1] = None
                pointed += known
            ends.append(len(pointed))
        self._integers("pointerEnd", ends, rising=True)
        self._integers("pointer", pointed, rising=True)

    def _value_columns(self) -> None:
        """Of floating-point tensors that ops have written, with their last nodes."""
        written = [[each for each in node.values if each.is_floating] for node in self._nodes]
        if any(written):
            for name, field, end in (("least", "minimum", min), ("largest", "maximum", max)):
                known = [
                    [getattr(each, field) for each in tensors if each.finite] for tensors in written
                ]
                self._fractions(name, [end(each, default=None) for each in known])
            self._integers("nans", [sum(each.nans for each in tensors) for tensors in written])
            self._integers(
                "infinities", [sum(each.infinities for each in tensors) for tensors in written]
            )

    def _edge_columns(self, report: ProfileReport | None) -> None:
        """With the positions of those that the data does not need, where nodes were timed."""
        edges = list(chain.from_iterable(graph.edges for graph in self._capture.graphs))
        self._integers("source", [edge.source for edge in edges], rising=True)
        self._integers("target", [edge.target for edge in edges], rising=True)
        self._integers("edgeType", [edge.type for edge in edges])
        ends = [0, *accumulate(len(graph.edges) for graph in self._capture.graphs)]
        unneeded = [
            ends[row.overlap.graph] + at
            for row in (report.paths if report else ())
            if row.overlap.unneeded_edges
            for at in unneeded_edges(self._capture, row.overlap.graph)
        ]
        self._integers("unneeded", unneeded, rising=True)

    def _path_columns(self, paths: list[CriticalPath]) -> None:
        """The critical path of each graph that no node runs, and the slack of its nodes."""
        by_graph = {path.graph: path for path in paths}
        critical: list[int] = []
        slack: list[int | None] = []
        for at, graph in enumerate(self._capture.graphs):
            path = by_graph.get(at)
            on_path = set(path.nodes) if path else ()
            critical += [int(node in on_path) for node in range(len(graph.nodes))]
            slack += path.slack_ns if path and path.timed else [None] * len(graph.nodes)
        self._integers("critical", critical)
        if self._timed:
            self._integers("slack", slack)

    def _utilization_columns(self) -> None:
        """What each node moves and computes, and how near it comes to the roofs."""
        capture = self._capture
        used = list(chain.from_iterable(utilizations(capture, graph) for graph in capture.graphs))
        numbers = {bound: at for at, bound in enumerate(BOUNDS)}
        self._fractions("bytes", [each.bytes for each in used])
        self._fractions("flops", [each.flops for each in used])
        if self._timed:
            self._fractions("memory", [each.memory for each in used])
            self._fractions("compute", [each.compute for each in used])
            self._integers("bound", [numbers.get(each.bound or "") for each in used])
        self._fractions("waves", [each.waves for each in used])
        self._fractions("occupancy", [occupancy(capture, node) for node in self._nodes])

    def _origins(self) -> list[list[Any]]:
        """By index of ``Capture.origins``: op, module, type of the module, the frame of its line,
        all its frames, the origin of its forward op, autograd node, ranges, and its module as
        tables name it."""
        rows = []
        for index, origin in enumerate(self._capture.origins):
            place = self._describer.places.of_origin(index)
            frames = [self._frame(self._capture.frames[at]) for at in origin.frames]
            rows.append(
                [
                    place.op, place.module, place.module_type, self._frame(place.line), frames,
                    -1 if origin.forward is None else origin.forward, place.autograd_node,
                    list(place.annotations), place.module_at(),
                ]
            )  # fmt: skip
        return rows

    def _files(self) -> dict[str, Any]:
        """Frames as ``[file, line, function]``, and the files."""
        files = Interned()
        frames = [[files.index(file), *place] for file, *place in self._frames.values]
        saved = {source.file: source for source in self._capture.sources}
        why = "not saved with the capture" if saved else _NOT_SAVED
        sources = (saved.get(name, Source(name, absent=why)) for name in files.values)
        return {"frames": frames, "files": list(map(_file, sources))}

    def _integers(self, name: str, values: list[Any], *, rising: bool = False) -> None:
        self._packer.integers(f"{self._prefix}{name}", values, rising=rising)

    def _fractions(self, name: str, values: list[float | None]) -> None:
        if any(value is not None for value in values):
            self._packer.fractions(f"{self._prefix}{name}", values)


def pack_memory(capture: Capture, prefix: str, packer: Packer) -> dict[str, Any]:
    """The tree of the pools; blocks become columns."""
    memory = capture.memory
    blocks, labels = memory.allocations, Interned()
    maps = [_PoolMap(pool) for pool in memory.pools]
    columns: dict[str, Sequence[int | None]] = {
        "pool": [block.pool for block in blocks],
        "at": [maps[block.pool].place(block) for block in blocks],
        "bytes": [block.bytes for block in blocks],
        "requested": [block.requested_bytes for block in blocks],
        "graph": [block.graph for block in blocks],
        "stream": [block.stream for block in blocks],
        "origin": [block.origin for block in blocks],
        "node": [block.node for block in blocks],
        "label": [labels.index(_holder(block)) for block in blocks],
    }
    for name, values in columns.items():
        packer.integers(f"{prefix}block/{name}", values)
    packer.integers(f"{prefix}block/from", [block.allocated_at for block in blocks], rising=True)
    packer.integers(f"{prefix}block/to", [block.freed_at for block in blocks])
    return {
        "blockLabels": labels.values,
        "pools": [
            {
                "name": row.name,
                "reserved": row.reserved_bytes,
                "live": row.live_bytes,
                "peak": row.peak_bytes,
                "floor": row.floor_bytes,
                "untouched": row.untouched_bytes,
                "peakAt": row.peak_at,
                "segments": pool_map.segments,
            }
            for row, pool_map in zip(pool_rows(capture), maps, strict=True)
        ],
    }


def _holder(block: Allocation) -> str:
    return block.label or (UNNAMED_HOLDER if block.freed_at is None else "")


class _PoolMap:
    """The segments of a pool, by address, without the gaps between them."""

    def __init__(self, pool: Pool) -> None:
        ordered = sorted(pool.segments, key=lambda segment: segment.address)
        ends = [0, *accumulate(segment.bytes for segment in ordered)]
        self._addresses = [segment.address for segment in ordered]
        self.segments: list[tuple[int, int, str, int]] = [
            (
                at,
                segment.bytes,
                segment.size_class,
                -1 if segment.stream is None else segment.stream,
            )
            for at, segment in zip(ends, ordered, strict=False)
        ]
        """Offset, bytes, size class and stream."""

    def place(self, block: Allocation) -> int | None:
        """Its offset in the pool; None if it is in no segment: that was given back."""
        number = bisect_right(self._addresses, block.address) - 1
        if number < 0:
            return None
        at, size, *_ = self.segments[number]
        inside = block.address - self._addresses[number]
        return at + inside if inside < size else None


def _file(source: Source) -> dict[str, Any]:
    """The lines of a file as they were when the capture was made, or why there are none."""
    return {
        "path": source.file,
        "absent": source.absent,
        "numbers": [block.first + at for block in source.blocks for at in range(len(block.lines))],
        "lines": [line.expandtabs() for block in source.blocks for line in block.lines],
    }
