"""The graphs that a program captures on a GPU, read while it runs (``cgtool run``)."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from cgtool.devices.cuda.driver import Position, capture_query, capturing_graph, relaxed
from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.devices.cuda.nodes import FunctionTable, GraphReader, Provenance, nodes_of
from cgtool.model.capture import Contents
from cgtool.observe.annotations import Annotations
from cgtool.observe.compiled_code import can_pause, pause_in_compiled_code
from cgtool.observe.frames import Chains, Site, chain_or_waiting, is_generated, is_internal_file
from cgtool.observe.generated import GeneratedCode, Source
from cgtool.observe.ops import OpCall, OpRecorder, RootedModuleStack
from cgtool.observe.origins import OriginTable
from cgtool.torch_compat import op_key
from cgtool.torch_compat.inductor import kernel_launch
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    current_graph_task,
    current_raw_stream,
    has_compiled,
    next_sequence_number,
)

LET_THROUGH = frozenset(
    f"aten::{name}"
    for name in (
        "empty.memory_format", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    )
)  # fmt: skip
"""Ops that launch nothing and have no backward: to watch one would take ten microseconds."""
_LAUNCH_NOTHING = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "_reshape_alias", "expand", "select.int", "slice.Tensor",
        "split.Tensor", "split_with_sizes", "unbind.int", "view.dtype", "diagonal", "as_strided",
        "t", "transpose.int", "permute", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims",
    )
)  # fmt: skip
"""Ops that launch nothing. Their backward may, or gradients are added up after it."""


class _Positions:
    """Where the capture of a stream was, each time that it was noted."""

    def __init__(self) -> None:
        self._query = capture_query()
        self._device = torch.cuda.current_device()
        self._seen: list[Position] = []
        self.note()

    def note(self) -> int:
        """Note the position of the current stream; its number among those noted."""
        self._seen.append(self._query(current_raw_stream(self._device)))
        return len(self._seen) - 1

    def counts(self, handles: Sequence[int]) -> list[int]:
        """For each position noted, how many of the nodes with these handles, in order of their
        creation, there were."""
        number = {handle: index + 1 for index, handle in enumerate(handles)}
        counts: list[int] = []
        before = 0
        for nodes in self._seen:
            if isinstance(nodes, int):
                known = number.get(nodes, 0)
            else:
                known = max((number.get(node, 0) for node in nodes), default=0)
            # A stream that was forked may still be at an earlier node.
            before = max(known, before)
            counts.append(before)
        return counts


@dataclass
class _Launch:
    """A Triton kernel that generated code launched."""

    site: Site | None
    """The line of the generated code."""
    chain: tuple[Site, ...]
    launches: tuple[int, int]


class _Recorder(OpRecorder):
    """Names the ops of a capture; ``launches`` of a call are numbers of positions."""

    modules: RootedModuleStack

    def __init__(self, chains: Chains) -> None:
        self.kernels: list[_Launch] = []
        self.generated: dict[int, Site] = {}
        """The lines of generated code that made calls, by their index."""
        self._may_be_generated = has_compiled()
        self.positions = _Positions()
        super().__init__({}, Annotations(), self.positions.note)
        self.modules = RootedModuleStack(chains)
        self._chains = chains
        self._home = threading.get_ident()
        self._waiting: tuple[int, tuple[Site, ...]] = -1, ()
        """A backward, and the chain that waits for it."""
        self.running.next_sequence = next_sequence_number()

    def begin(self, func: Any, caller: Any) -> OpCall:
        call = super().begin(func, caller)
        site = _generated_site(caller) if self._may_be_generated else None
        if site is not None:
            self.generated[call.index] = site
        return call

    def chain(self, caller: FrameType | None) -> tuple[Site, ...]:
        return self.modules.chain(caller)

    def waiting_chain(self) -> tuple[Site, ...]:
        task = current_graph_task()
        if task < 0 or task != self._waiting[0]:
            sites = super().waiting_chain()
            self._waiting = task, self._chains.extended(reversed(sites), ())
        return self._waiting[1]

    def observe(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        caller: FrameType | None,
    ) -> Any:
        call = self.begin(func, caller)
        if call.name in _LAUNCH_NOTHING:
            result = run(*args, **kwargs)
        else:
            start = self.launch_count()
            try:
                result = run(*args, **kwargs)
            finally:
                call.launches = start, self.launch_count()
        self.note_made(call)
        return result

    def launch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of the method that launches a Triton kernel."""
        start = self.launch_count()
        try:
            return original(*args, **kwargs)
        finally:
            launches = start, self.launch_count()
            frame = sys._getframe(1)
            self.kernels.append(_Launch(_generated_site(frame), chain_or_waiting(frame), launches))


def _generated_site(frame: FrameType | None) -> Site | None:
    """The frame of generated code that calls PyTorch; None if the user's code does."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_generated(file):
            return frame.f_code, frame.f_lasti
        if not is_internal_file(file):
            break
        frame = frame.f_back
    return None


_watched = threading.Lock()
"""One capture at a time has its ops watched: the others of other threads do not."""


class _Watch:
    """A capture in progress."""

    def __init__(self, captures: Captures, table: OriginTable) -> None:
        self._captures = captures
        self._table = table
        self._stream = int(torch.cuda.current_stream().cuda_stream)
        self._recorder: _Recorder | None = None
        self._chain = chain_or_waiting(sys._getframe(1))
        self._watching = contextlib.ExitStack()
        compiled = _in_graph_trees()
        if not op_key.is_supported() or not (compiled or can_pause()):
            return
        with contextlib.ExitStack() as watching:
            if _watched.acquire(blocking=False):
                watching.callback(_watched.release)
                self._observe(watching, compiled=compiled)
            self._watching = watching.pop_all()

    def _observe(self, watching: contextlib.ExitStack, *, compiled: bool) -> None:
        recorder = self._recorder = _Recorder(self._captures.chains)
        patches = watching.enter_context(Patches())
        if not compiled:
            pause_in_compiled_code(patches, op_key.paused, generated=False)
        if not has_compiled():
            # Its hooks are those of all modules, which Dynamo's guards see.
            watching.enter_context(recorder.modules)
        point = kernel_launch()
        if point is not None:
            patches.wrap(*point, recorder.launch)
        watching.enter_context(op_key.watch(recorder.observe))

    def read(self) -> Contents | None:
        graph = capturing_graph(self._stream)
        if graph is None:
            return None
        with relaxed():
            handles = [int(node) for node in nodes_of(graph)]
            contents = self._captures.reader.read(graph, 0, self._origins(handles))
        return tuple(contents.nodes), contents.edges

    def stop(self) -> None:
        self._watching.close()

    def _origins(self, handles: Sequence[int]) -> list[Provenance]:
        origins: list[Provenance] = [(None, None, None)] * len(handles)
        recorder = self._recorder
        if recorder is None:
            return origins
        counts = recorder.positions.counts(handles)
        for kernel in recorder.kernels:
            start, end = (counts[position] for position in kernel.launches)
            if start < end:
                origin = self._generated(kernel.site, None, kernel.chain)
                origins[start:end] = [(origin, None, None)] * (end - start)
        for call in recorder.record.calls:
            start, end = call.launches
            start, end = counts[start], counts[end]
            if start < end:
                site = recorder.generated.get(call.index)
                if site is not None:
                    origin = self._generated(site, call.name, call.chain or self._chain)
                else:
                    origin = self._table.add(call, recorder.record)
                origins[start:end] = [(origin, call.index, None)] * (end - start)
        return origins

    def _generated(self, site: Site | None, op: str | None, chain: Sequence[Site]) -> int:
        """The origin of what a line of generated code launched, which ``chain`` calls."""
        source = Source() if site is None else self._captures.code.source(site)
        return self._table.add_generated(op, source, chain)


class Captures:
    """The captures of this process: what they share."""

    def __init__(self, code: GeneratedCode) -> None:
        self.code = code
        self.functions = FunctionTable()
        self.reader = GraphReader(self.functions, AddressBook(Trace(), (), (), ()))
        self.chains = Chains()

    def watch(self, table: OriginTable) -> _Watch:
        """Follow the capture that has just begun; ``table`` takes the origins of its nodes."""
        return _Watch(self, table)


def _in_graph_trees() -> bool:
    """Whether compiled code is running, which no guard is checked in."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("/torch/_inductor/cudagraph_trees.py"):
            return True
        frame = frame.f_back
    return False
