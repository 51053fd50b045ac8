"""Results of several replays that are kept without a copy: all are one buffer.

Only facts decide. A container held an output when a replay overwrote it, and has got the same
memory once more since. Or one line, or a graphed callable, has made two tensors of the same memory,
one before the last replay and one after it, and the older one is read. Or an op that compares two
tensors gets one twice. An output that one name holds may well be read after each replay, so a name
alone is no mistake.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.observe.script import events
from cgtool.observe.script.names import Named, everything_named, stack_of
from cgtool.observe.script.script import called_by_pytorch
from cgtool.observe.script.state import Buffer, Op, WatchedGraph
from cgtool.observe.tensors import tensors_in
from cgtool.torch_compat.private import running_autograd_node
from cgtool.torch_compat.weak import Weak

OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY = code("output-overwritten-by-next-replay")

_COMPARISONS = (
    "aten::sub.", "aten::rsub.", "aten::equal", "aten::isclose", "aten::allclose",
    "aten::mse_loss", "aten::dist", "aten::lt.", "aten::le.", "aten::gt.", "aten::ge.",
    "aten::minimum", "aten::maximum", "aten::fmin", "aten::fmax", "aten::div.", "aten::lerp.",
    "aten::where.self", "aten::smooth_l1_loss", "aten::huber_loss", "aten::logical_xor",
    "aten::bitwise_xor",
)  # fmt: skip
"""Ops whose result is trivial for two arguments that are one tensor. Not ``eq`` and ``ne``:
``x != x`` finds NaN."""
_REPLAYS = 32
"""Replays of one graph at which is searched for what holds its outputs."""
_READS = 256
"""Reads of outputs of one graph after which is searched."""
_SHOWN = 3
"""Names in one message."""


class _Memory(NamedTuple):
    """The part of a storage that a tensor shows."""

    key: int
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class _Made:
    """A tensor that shows an output, other than those that the captured code has returned."""

    tensor: Weak[torch.Tensor]
    memory: _Memory
    replays: int
    """Replays of the graph until the tensor was made or first seen."""
    maker: Hashable
    """The call, or the graphed callable, that has made it; None if that was not seen."""


@dataclass(eq=False)
class _Outputs:
    """The outputs of one graph, and where the script keeps them."""

    counts: dict[tuple[str, _Memory], int] = field(default_factory=dict)
    """How many items of each container held them when the last replay began."""
    unnamed: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By id of a tensor: how many references to it no name led to, at each replay."""
    piled: dict[_Memory, tuple[str, int, Frames]] = field(default_factory=dict)
    """A container that got another item between two replays, how many it held, and where the
    replay is that has overwritten them."""
    static: dict[int, Weak[torch.Tensor]] = field(default_factory=dict)
    """By id: what was there before the first replay."""
    made: dict[int, _Made] = field(default_factory=dict)
    """By id: what was made later."""
    searched: set[tuple[_Memory, int, Frames]] = field(default_factory=set)
    """The reads, after so many replays and at a line, after which was searched."""
    reported: set[str] = field(default_factory=set)
    """Reasons."""

    def note(
        self, tensor: torch.Tensor, memory: _Memory, replays: int, maker: Hashable = None
    ) -> None:
        """A tensor is there."""
        number = id(tensor)
        known = self.static.get(number)
        if known is not None and known() is tensor:
            return
        if replays == 0:
            self.static[number] = Weak(tensor)
            return
        made = self.made.get(number)
        if made is None or made.tensor() is not tensor:
            self.made[number] = _Made(Weak(tensor), memory, replays, maker)

    def forget_dead(self) -> None:
        self.made = {key: made for key, made in self.made.items() if made.tensor() is not None}

    def made_before(self, tensor: torch.Tensor, replays: int) -> bool:
        """Whether it was made after a replay, and before the last one."""
        made = self.made.get(id(tensor))
        return made is not None and made.tensor() is tensor and made.replays < replays

    def has_newer(self, tensor: torch.Tensor, replays: int) -> bool:
        """Whether the same call has made another tensor at its address after the last replay, of
        as many rows or of others."""
        older = self.made[id(tensor)]
        return older.maker is not None and any(
            (made.maker, made.replays) == (older.maker, replays)
            and made.memory.address == older.memory.address
            and made.tensor() is not None
            for made in list(self.made.values())
        )


class KeptOutputs(Detector):
    """Outputs that are kept over several replays."""

    phase = "replay"

    def start(self) -> None:
        self._outputs: defaultdict[WatchedGraph, _Outputs] = defaultdict(_Outputs)
        self._captured: list[Weak[torch.Tensor]] = []
        """Results of the ops of the capture in progress."""

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._captured.clear()

    def on_op_captured(self, event: events.OpCaptured) -> None:
        self._captured += [Weak(each) for each in tensors_in(event.result)]

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        outputs = self._outputs[event.graph]
        written = [use.tensor for use in event.graph.external.values() if use.first_is_write]
        for reference in (*self._captured, *written):
            tensor = reference()
            if tensor is not None:
                outputs.static[id(tensor)] = reference
        self._captured.clear()

    def on_graph_dropped(self, event: events.GraphDropped) -> None:
        self._outputs.pop(event.graph, None)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        outputs = self._outputs[graph]
        if graph.replays >= _REPLAYS:
            outputs.counts.clear()
            return
        holders = self._holders(graph)
        counts = _counts(holders)
        for (text, memory), count in counts.items():
            if 0 < outputs.counts.get((text, memory), 0) < count:
                outputs.piled[memory] = text, count, self.script.place()
        outputs.counts = counts
        outputs.forget_dead()
        held: dict[int, tuple[torch.Tensor, int]] = {}
        for holder, memory in holders:
            outputs.note(holder.value, memory, graph.replays)
            tensor, count = held.get(id(holder.value), (holder.value, 0))
            here = len(holder.items) or 1
            held[id(tensor)] = tensor, count + here + 1  # a holder has a reference as well
        for number, (tensor, count) in held.items():
            outputs.unnamed[number].append(sys.getrefcount(tensor) - count)

    def on_callable_returned(self, event: events.CallableReturned) -> None:
        self._note_made(event.tensors, event.callable)

    def on_eager_op(self, event: events.EagerOp) -> None:
        if running_autograd_node() is None:
            op = event.op
            for tensor in op.read:
                self._look(tensor)
            self._look_at_lists(op)
            self._look_at_comparison(op)
            given = set(map(id, op.tensors))
            made = [each for each in tensors_in(event.result) if id(each) not in given]
            self._note_made(made, None)

    def on_host_read(self, event: events.HostRead) -> None:
        self._look(event.tensor)

    def on_host_waited(self, event: events.HostWaited) -> None:
        if event.tensor is not None:
            self._look(event.tensor)

    def _note_made(self, tensors: Iterable[torch.Tensor], maker: Hashable) -> None:
        """``maker``: a graphed callable; None for the call that runs."""
        for tensor in tensors:
            graph, memory = self._output(tensor)
            if graph is not None and memory is not None and graph in self._outputs:
                called = [(id(code), offset) for code, offset in self.script.chain()[:1]]
                self._outputs[graph].note(tensor, memory, graph.replays, maker or tuple(called))

    def _look(self, tensor: torch.Tensor) -> None:
        """A tensor is read."""
        graph, memory = self._output(tensor)
        if graph is None or memory is None or graph.replays < 2 or graph not in self._outputs:
            return
        outputs, replays = self._outputs[graph], graph.replays
        for piled in [each for each in outputs.piled if each.key == memory.key]:
            self._report_container(graph, *outputs.piled.pop(piled))
        if outputs.made_before(tensor, replays) and outputs.has_newer(tensor, replays):
            self._report_older(graph, tensor, memory)
            return
        is_in_container = any(known.key == memory.key for _, known in outputs.counts)
        if not (is_in_container or _grown(outputs.unnamed[id(tensor)], 1)):
            return
        search = memory, replays, self.script.place()
        if search in outputs.searched or len(outputs.searched) >= _READS:
            return
        outputs.searched.add(search)
        for (text, own), count in _counts(self._holders(graph)).items():
            if own.key != memory.key or count < 2:
                continue
            before = outputs.counts.get((text, own), 0)
            if 0 < before < count or (
                before == 0 and _grown(outputs.unnamed[id(tensor)], count - 1)
            ):
                self._report_container(graph, text, count)

    def _look_at_lists(self, op: Op) -> None:
        """An op takes a list that is made of the results of several replays: ``torch.stack([run(x),
        run(y)])``."""
        for value in (*op.args, *op.kwargs.values()):
            tensors = [*tensors_in(value)] if isinstance(value, list | tuple) else []
            for tensor in {id(each): each for each in tensors}.values():
                count = sum(each is tensor for each in tensors)
                graph, _ = self._output(tensor)
                if count < 2 or graph is None or graph not in self._outputs:
                    continue
                if _grown(self._outputs[graph].unnamed[id(tensor)], count - 1):
                    self._report_container(graph, "a list", count)

    def _look_at_comparison(self, op: Op) -> None:
        """An output is compared with itself: one of its names was meant for an earlier one."""
        if len(op.tensors) < 2 or not op.name.startswith(_COMPARISONS):
            return
        # A mask comes before what it selects from.
        first, second = op.tensors[-2:] if op.name.startswith("aten::where.") else op.tensors[:2]
        graph, memory = self._output(first)
        if graph is None or memory is None or graph.replays < 2 or graph not in self._outputs:
            return
        outputs = self._outputs[graph]
        is_older = any(outputs.made_before(each, graph.replays) for each in (first, second))
        # A loss is a function of PyTorch in Python.
        if (
            self._output(second)[1] == memory
            and (first is second or is_older)
            and not called_by_pytorch(but_for=torch.nn.functional.__file__)
        ):
            names = self._names(graph, memory)
            self._report(
                graph,
                f"an output of {graph.name} is compared with itself, because this replay has "
                "overwritten the earlier one" + (f"; its names are {names}" if names else ""),
            )

    def _report_container(
        self, graph: WatchedGraph, text: str, count: int, frames: Frames | None = None
    ) -> None:
        name = text.partition(": ")[2]
        self._report(
            graph,
            f"{count} items of {f'`{name}`' if name else text} are the output of {graph.name}, "
            "kept after different replays: all of these are one buffer, which has the result of "
            "the last replay",
            frames,
        )

    def _report_older(self, graph: WatchedGraph, tensor: torch.Tensor, memory: _Memory) -> None:
        self._report(
            graph,
            f"{self._names(graph, memory, tensor) or 'a tensor'} is a result of {graph.name} from "
            "before this replay, which overwrites it, and is read although there is a newer one",
        )

    def _report(self, graph: WatchedGraph, reason: str, frames: Frames | None = None) -> None:
        outputs, last = self._outputs[graph], graph.last_replay
        is_explained = graph.callable is not None and graph.callable.called_twice
        if last is None or is_explained or reason in outputs.reported:
            return
        outputs.reported.add(reason)
        used = self.script.place()[:1]
        self.report(
            OUTPUT_OVERWRITTEN_BY_NEXT_REPLAY,
            reason,
            last.frames if frames is None else frames,
            evidence=tuple(f"used at {frame.short}" for frame in used),
            graphs=(graph,),
        )

    def _names(
        self, graph: WatchedGraph, memory: _Memory, tensor: torch.Tensor | None = None
    ) -> str:
        """The script's names for the tensors of a memory."""
        texts = [
            f"`{holder.text}`"
            for holder, own in self._holders(graph)
            if own == memory and (tensor is None or tensor is holder.value)
        ]
        texts = list(dict.fromkeys(texts))[:_SHOWN]
        return ", ".join(texts)

    def _holders(self, graph: WatchedGraph) -> list[tuple[Named, _Memory]]:
        """Containers and names that hold outputs of a graph now."""
        holders: list[tuple[Named, _Memory]] = []
        for named in everything_named(stack_of(self.script.frame())):
            if isinstance(named.value, torch.Tensor):
                own, memory = self._output(named.value)
                if own is graph and memory is not None:
                    holders.append((named, memory))
        return holders

    def _output(self, tensor: torch.Tensor) -> tuple[WatchedGraph | None, _Memory | None]:
        """The graph whose output a tensor shows, and the memory."""
        buffer = self.script.buffers.find(tensor)
        graph = None if buffer is None else _writer_of(buffer, tensor)
        if buffer is None or graph is None or tensor.layout != torch.strided:
            return None, None
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return graph, _Memory(buffer.key, tensor.data_ptr(), shape, stride)


def _writer_of(buffer: Buffer, tensor: torch.Tensor) -> WatchedGraph | None:
    """The graph that overwrites a buffer at each replay."""
    if buffer.allocated_in is not None or buffer.last_write is None:
        return buffer.allocated_in
    graph = buffer.last_write.graph
    use = None if graph is None else graph.external.get(buffer.key)
    is_state = use is None or not use.first_is_write or isinstance(tensor, torch.nn.Parameter)
    return None if is_state else graph


def _counts(holders: Iterable[tuple[Named, _Memory]]) -> dict[tuple[str, _Memory], int]:
    """How many items of each container lead to a memory."""
    items: defaultdict[tuple[str, _Memory], set[int]] = defaultdict(set)
    for holder, memory in holders:
        for text, numbers in holder.containers:
            items[text, memory].update(numbers)
    return {key: len(found) for key, found in items.items()}


def _grown(references: list[int], times: int) -> bool:
    """Whether there was another reference without a name at each of the last replays."""
    last = references[-times - 1 :]
    return len(last) > times and all(a < b for a, b in pairwise(last))
