"""A Chrome trace again, with what a capture knows of its kernels.

Every event stays as it was, but for kernels, memcpys and memsets that are nodes of a graph: their
arguments get op, module, line and forward line, as with ``cuda_graph_annotations=`` of PyTorch's
``export_chrome_trace``. A process of its own has the nesting modules, lines and ops as slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from cgtool import __version__
from cgtool.analysis.timing.trace import Span, levels_of, nested_tracks
from cgtool.analysis.trace_match import Launch, NodeMatch
from cgtool.model.capture import Capture
from cgtool.model.gpu_trace import EVENTS, ChromeTrace
from cgtool.model.nsight import NsightTrace
from cgtool.render.perfetto import Event, Slices, metadata
from cgtool.render.text import visible

Key = TypeVar("Key")
BANDS_PID = 900_000_000
"""Larger than any process of a system; the device is added to it."""
_NAMED = 10_000
_SORT = 4_999_999
"""PyTorch sorts GPUs from 5,000,000 on: just above them."""
_CHUNK = 10_000
_EXACT_NS = 2**53
"""Up to there, microseconds as floats have digits for nanoseconds."""
_ANNOTATED = "cudaGraphInlineAnnotated"
"""The key with which PyTorch marks a trace that has annotations, ahead of the events."""


class Annotator:
    """The arguments that records get."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.slices = Slices(capture)
        self._known: dict[NodeMatch, dict[str, str]] = {}

    def arguments(self, match: NodeMatch) -> dict[str, str]:
        """By name; empty for a record that is not a node."""
        if match not in self._known:
            self._known[match] = self._arguments(match)
        return self._known[match]

    def _arguments(self, match: NodeMatch) -> dict[str, str]:
        if not match.targets:
            return {}
        graphs = self._capture.graphs
        nodes = [f"{visible(graphs[graph].name)}/{node}" for graph, node in match.targets]
        shown = ", ".join(nodes[:3]) + (", …" if len(nodes) > 3 else "")
        return {**self.slices.place(match.place), "node": shown, "matched by": match.how}


def annotated(trace: ChromeTrace, launches: Sequence[Launch], capture: Capture) -> Iterator[bytes]:
    """The file in parts."""
    annotator = Annotator(capture)
    known = {
        record.row: annotator.arguments(each)
        for launch in launches
        for record, each in zip(launch.records, launch.fit.matches, strict=True)
    }
    head = dict(trace.head)
    if any(known.values()):
        head[_ANNOTATED] = msgspec.Raw(b"true")
        # `read_chrome` refuses to add the same again.
        other = msgspec.json.decode(head.get("otherData", b"{}"))
        if isinstance(other, dict):
            head["otherData"] = msgspec.Raw(msgspec.json.encode({**other, "cgtool": __version__}))
    yield b"{"
    for key, value in head.items():
        yield msgspec.json.encode(key) + b": " + bytes(value) + b",\n"
    yield msgspec.json.encode(EVENTS) + b": ["
    separator = b"\n"
    for at in range(0, len(trace.events), _CHUNK):
        part = [
            _with(bytes(event), arguments)
            if (arguments := known.get(at + offset))
            else bytes(event)
            for offset, event in enumerate(trace.events[at : at + _CHUNK])
        ]
        yield separator + b",\n".join(part)
        separator = b",\n"
    for event in _bands(launches, capture, annotator.slices, trace.names):
        yield separator + msgspec.json.encode(event)
        separator = b",\n"
    yield b"\n]}\n"


def _with(event: bytes, arguments: Mapping[str, str]) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(event)
    fields["args"] |= arguments
    return msgspec.json.encode(fields)


def nodes(
    trace: NsightTrace, launches: Sequence[Launch], capture: Capture
) -> Iterator[tuple[int, int, dict[str, str]]]:
    """Process and id of the nodes of an export, with what is known of them, except where two
    launches contradict each other."""
    annotator = Annotator(capture)
    known: dict[tuple[int, int], dict[str, str] | None] = {}
    for launch in launches:
        for record, match in zip(launch.records, launch.fit.matches, strict=True):
            key, arguments = trace.ids[record.row], annotator.arguments(match)
            if arguments:
                known[key] = arguments if known.get(key, arguments) == arguments else None
    return ((*key, arguments) for key, arguments in known.items() if arguments is not None)


class _Lanes:
    """Threads of the process of one device: slices of two launches at once need two."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def take(self, start_ns: int, end_ns: int) -> tuple[int, bool]:
        """A lane that is free from then on, and whether it is new."""
        lane = next((at for at, end in enumerate(self._ends) if end <= start_ns), None)
        is_new = lane is None
        if lane is None:
            lane = len(self._ends)
            self._ends.append(0)
        self._ends[lane] = end_ns
        return lane, is_new


def _bands(
    launches: Iterable[Launch], capture: Capture, slices: Slices, names: Mapping[int, str]
) -> Iterator[Event]:
    """``names``: of devices without a number."""
    levels = levels_of(capture)
    devices: dict[int, _Lanes] = {}
    for launch in launches:
        if not launch.fit.graphs:
            continue
        graph = capture.graphs[launch.fit.graphs[0]]
        nodes = [
            Span("node", graph.nodes[each.targets[0][1]], record.start_ns, record.end_ns)
            for record, each in zip(launch.records, launch.fit.matches, strict=True)
            if each.how not in ("ambiguous", "none")
        ]
        device = launch.records[0].launch[0]
        # Devices with a name have negative numbers.
        pid = BANDS_PID + (device if device >= 0 else _NAMED - device)
        if device not in devices:
            devices[device] = _Lanes()
            where = visible(names.get(device, f"GPU {device}"))
            yield metadata("process_name", pid, 0, name=f"modules of graphs on {where}")
            yield metadata("process_sort_index", pid, 0, sort_index=_SORT)
        name = " or ".join(visible(capture.graphs[index].name) for index in launch.fit.graphs[:3])
        for number, track in enumerate(nested_tracks(graph, nodes, levels)):
            start, end = track.nodes[0].start_ns, max(span.end_ns for span in track.nodes)
            lane, is_new = devices[device].take(start, end)
            if is_new:
                yield metadata("thread_name", pid, lane, name=f"modules {lane}")
                yield metadata("thread_sort_index", pid, lane, sort_index=lane)
            stream = f", branch {number}" if number else ""
            yield _slice(pid, lane, f"{name}{stream}", start, end, "graph", None)
            for span in track.spans:
                if span.kind != "node":
                    text, args = slices.around(span)
                    yield _slice(pid, lane, text, span.start_ns, span.end_ns, span.kind, args)


def _slice(
    pid: int, tid: int, name: str, start: int, end: int, kind: str, args: dict[str, Any] | None
) -> Event:
    """Where microseconds as floats have no digits for nanoseconds, begin and end are ones that a
    float can be, written in full: slices stay inside each other whether a reader takes the text for
    floats or for decimals."""
    if end < _EXACT_NS:
        return Event("X", name, pid, tid, start / 1000, (end - start) / 1000, kind, args=args)
    at, duration = (
        msgspec.Raw(f"{each:.3f}".encode()) for each in (start / 1000, end / 1000 - start / 1000)
    )
    return Event("X", name, pid, tid, at, duration, kind, args=args)
