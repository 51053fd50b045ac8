"""A program's graph whose nodes run one at a time (``cgtool run --step``), and where the pointers
of a node lead when it has failed."""

from __future__ import annotations

import contextlib
import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import place_of
from cgtool.analysis.stepped import launch_text
from cgtool.devices.cuda.allocations import user_frames
from cgtool.devices.cuda.driver import check, cu, graph_nodes, relaxed
from cgtool.devices.cuda.memory import AddressBook, Place, Trace
from cgtool.devices.cuda.nodes import TIMED, FunctionTable, GraphReader, NodeFields, type_of
from cgtool.devices.cuda.stepping import IDLE, CudaStepper, set_enabled
from cgtool.devices.stepping import StepFailedError
from cgtool.model import clock
from cgtool.torch_compat.allocator import lists_memory
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    MissingPrivateName,
    memory_snapshot,
    record_memory_history,
    when_initialized,
)

_EVENTS = 200_000
"""Events of the allocator that are kept."""
_NEAR = 1 << 30
"""Bytes around the allocator's memory in which a number is taken for an address."""
_SHOWN = 12
"""Pointers of a node."""


def step_graphs(patches: Patches) -> Callable[[Any], CudaSteppedGraph]:
    """Have all graphs keep their CUgraph, and the allocator its last events. Returns what makes a
    ``torch.cuda.CUDAGraph`` run node by node; it raises an error if the graph must run
    whole (before PyTorch 2.9: AttributeError)."""
    captured = WeakKeyDictionary[Any, tuple[int, int]]()
    """The index of its device, and when its capture ended."""

    def kept(original: Any, graph: Any, _keep_graph: bool = False, *rest: Any, **more: Any) -> None:
        original(graph, *rest, **more | {"keep_graph": True})

    def ended(original: Any, graph: Any) -> None:
        captured[graph] = torch.cuda.current_device(), clock.time_ns()
        original(graph)

    def keep_events() -> None:
        if lists_memory():
            record_memory_history(stacks="python", max_entries=_EVENTS)

    def stepped(graph: Any) -> CudaSteppedGraph:
        if graph not in captured:
            raise RuntimeError("its capture was not seen")
        return CudaSteppedGraph(graph, *captured[graph])

    patches.wrap(torch.cuda.CUDAGraph.__base__, "__init__", kept)
    patches.wrap(torch.cuda.CUDAGraph, "capture_end", ended)
    with contextlib.suppress(MissingPrivateName):
        when_initialized(keep_events)
    return stepped


class CudaSteppedGraph:
    """The graph of a ``torch.cuda.CUDAGraph``, captured on a device with this index until then."""

    def __init__(self, graph: Any, device: int, captured_ns: int) -> None:
        self._device, self._captured_us = device, captured_ns // 1000
        self._functions = FunctionTable()
        self._pool = tuple(graph.pool())
        with torch.cuda.device(device), relaxed():
            torch.cuda.current_stream().synchronize()  # makes the context that of this thread
            template = int(graph.raw_cuda_graph())
            # After a fault the driver reads nothing anymore.
            self._fields = GraphReader(self._functions, _AllAddresses()).read(template, 0).fields
            self._stepper = CudaStepper(template, torch.cuda.default_stream(device))
            try:
                _disable(graph, template)
            except Exception:
                self._stepper.close()
                raise

    def step(self, replay: Callable[[Any], None], graph: Any, *, is_idle: bool) -> None:
        replay(graph)
        with torch.cuda.device(self._device), relaxed():
            # What fails here has run before the nodes.
            (torch.cuda if is_idle else torch.cuda.current_stream()).synchronize()
            try:
                self._stepper.step()
            except StepFailedError as failed:
                # Raises nothing if the device is all right, and the driver has refused a launch.
                try:
                    torch.cuda.synchronize()
                except RuntimeError as error:
                    raise StepFailedError(self._stepper, failed.node, error) from None
                raise failed.error from None

    def evidence(self, node: int) -> tuple[str, ...]:
        fields = self._fields[node]
        texts: list[str] = []
        if (kernel := fields.get("kernel")) is not None:
            texts.append(launch_text(self._functions.functions[kernel.function].name, kernel))
        try:
            memory = _Memory(memory_snapshot(), self._pool, self._captured_us)
        except RuntimeError:  # the device can say nothing anymore
            return tuple(texts)
        places = [
            (is_usual, f"{name}: {address:#x} {text}")
            for name, address, is_whole in self._pointers(fields)
            for is_usual, text in memory.place(address, is_pointer=is_whole)
        ]
        places.sort(key=itemgetter(0))
        return (*texts, *(text for _, text in places[:_SHOWN]))

    def _pointers(self, fields: NodeFields) -> Iterator[tuple[str, int, bool]]:
        """Name, address, and whether that is a whole argument. A word of a struct may be no pointer
        (``AddressBook.lookup``)."""
        if (kernel := fields.get("kernel")) is not None:
            sizes = self._functions.functions[kernel.function].parameter_bytes
            for each in kernel.pointers:
                yield f"argument {each.parameter}", each.address, sizes[each.parameter] == 8
        if (copy := fields.get("copy")) is not None:
            ends = ("source", copy.source), ("destination", copy.destination)
            for kind, (name, address) in zip(copy.kind.split("to"), ends, strict=True):
                if kind == "d":
                    yield name, address, True
        if (fill := fields.get("fill")) is not None:
            yield "destination", fill.destination, True

    def close(self) -> None:
        with relaxed():
            self._stepper.close()


class _AllAddresses(AddressBook):
    """Takes every number that may be an address for one."""

    def __init__(self) -> None:
        super().__init__(Trace(), (), (), ())
        self.low, self.high = 1 << 32, 1 << 57

    def lookup(self, address: int, graph: int, node: int, *, in_struct: bool = False) -> Place:
        return None, None


def _disable(graph: Any, template: int) -> None:
    """Have launches of a ``CUDAGraph`` run no node. Raises RuntimeError."""
    try:
        executable = graph.raw_cuda_graph_exec()
    except RuntimeError:  # not instantiated yet
        graph.instantiate()
        executable = graph.raw_cuda_graph_exec()
    executable = cu.CUgraphExec(int(executable))
    nothing = cu.CUDA_HOST_NODE_PARAMS()
    nothing.fn = cu.CUhostFn(ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p).value)  # of NULL
    try:
        for node, handle in enumerate(graph_nodes(template)):
            kind = type_of(handle)
            if kind in TIMED:
                set_enabled(executable, [handle], on=False)
            elif kind == "host":
                place = cu.CUgraphNode(handle)
                done = cu.cuGraphExecHostNodeSetParams(executable, place, nothing)
                check("cuGraphExecHostNodeSetParams", done)
            elif kind not in IDLE:
                raise RuntimeError(f"node {node} of type {kind} cannot be disabled")
    except Exception:
        graph.instantiate()  # some nodes are disabled
        raise


class _Memory:
    """What the allocator knows of its memory, now and before."""

    def __init__(
        self, snapshot: Mapping[str, Any], pool: tuple[int, ...], captured_us: int
    ) -> None:
        """``pool``: of the graph, whose capture ended at this time."""
        self._captured_us = captured_us
        self._blocks: list[tuple[int, bool, Any]] = sorted(
            (block["address"], tuple(segment["segment_pool_id"]) == pool, block)
            for segment in snapshot["segments"]
            for block in segment["blocks"]
        )
        self._events = [each for of in snapshot.get("device_traces") or () for each in of]

    def place(self, address: int, *, is_pointer: bool) -> Iterator[tuple[bool, str]]:
        """Whether it is as usual, and where an address leads; nothing for a number that is none."""
        number = bisect_right(self._blocks, address, key=itemgetter(0)) - 1
        nowhere: tuple[int, bool, Any] = 0, False, {"size": 0}
        start, is_own, block = self._blocks[number] if number >= 0 else nowhere
        is_inside = address < start + block["size"]
        if is_inside and block["state"].startswith("active"):
            size, offset = block["requested_size"], address - start
            text = f"a block of {size:,} bytes" + _at("allocated", block)
            if offset >= size:
                yield False, f"{offset - size:,} bytes beyond the end of {text}"
            else:
                yield True, f"in {text}" + (f", {offset:,} bytes from its start" * (offset > 0))
        elif is_inside and is_own:
            yield True, "in the memory of the graph"
        elif (freed := self._history(address, is_pointer)) or (is_inside and is_pointer):
            yield False, f"in freed memory{freed}"
        elif is_pointer and number >= 0 and address < start + block["size"] + _NEAR:
            end = start + block["size"]
            yield False, f"in no allocation, {address - end:,} bytes beyond the end of one"

    def _history(self, address: int, is_pointer: bool) -> str:
        """Who owned it last, and where it was freed and given back."""
        # What was free already at the capture is what an earlier call has left in a struct.
        since_us = 0 if is_pointer else self._captured_us
        last: dict[str, Any] = {}
        for event in reversed(self._events):
            kind = _KINDS.get(event["action"], "allocated")
            if event["action"] in _KINDS and 0 <= address - event["addr"] < event["size"]:
                last.setdefault(kind, event)
                if kind != "allocated" and event["time_us"] < since_us:
                    return ""
                if kind == "allocated":
                    break
        owner = last.get("allocated") or last.get("freed")
        size = f" of {owner['size']:,} bytes" if owner else ""
        return size + "".join(
            _at(kind, last.get(kind, {})) for kind in dict.fromkeys(_KINDS.values())
        )


_KINDS = {
    "alloc": "allocated",
    "free_requested": "freed",
    "segment_free": "given back",
    "segment_unmap": "given back",
}
"""By the action of an event of the allocator, in order of time."""


def _at(kind: str, event: Mapping[str, Any]) -> str:
    """``, freed at model.py:12``, if the line is known."""
    place = place_of(user_frames(event))
    return f", {kind} at {file_line(place)}" if place else ""
