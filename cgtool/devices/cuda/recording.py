"""The graphs that a program captures on a GPU, read while it runs (``cgtool run``)."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from types import FrameType
from typing import Any

import torch

from cgtool.devices.cuda.driver import (
    INVALIDATED,
    Position,
    capture_info_address,
    capture_query,
    free_bytes,
    native_reader,
)
from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.devices.cuda.nodes import FunctionTable, GraphReader, Provenance
from cgtool.model.capture import Contents
from cgtool.model.finding import Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.captured_calls import look
from cgtool.observe.compiled_code import Pauses, can_pause
from cgtool.observe.effects import looks_at_shapes, overwrites
from cgtool.observe.frames import (
    Chain,
    Chains,
    Site,
    callers,
    chain_of,
    frames_of,
    is_generated,
    is_internal,
    is_internal_file,
    look_up_chains_in_cpp,
    package_part,
)
from cgtool.observe.generated import GeneratedCode, Source
from cgtool.observe.graphs import GRAPHS
from cgtool.observe.ops import (
    OpCall,
    OpRecorder,
    RootedModuleNames,
    RootedModuleStack,
    Running,
    ThreadState,
)
from cgtool.observe.origins import OriginTable
from cgtool.observe.waiting import chain_or_waiting
from cgtool.torch_compat import op_key, op_watch
from cgtool.torch_compat.inductor import kernel_launches
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    CALL_MODULE_CODE,
    current_graph_task,
    current_raw_stream,
    has_compiled,
    weak_storage_expired,
)
from cgtool.torch_compat.storages import StorageRef

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
        self._device = torch.cuda.current_device()
        self.seen: list[Position] = [()]
        """Number 0 is that of calls that launch nothing."""
        self.streams = [0]
        """The handle of the stream, for each."""

    @cached_property
    def _query(self) -> Callable[[int], Position]:
        return capture_query()

    def note(self) -> int:
        """Note the position of the current stream; its number among those noted."""
        stream = current_raw_stream(self._device)
        self.seen.append(self._query(stream))
        self.streams.append(stream)
        return len(self.seen) - 1

    def counts(self, handles: Sequence[int]) -> list[int]:
        """For each position noted, how many of the nodes with these handles, in order of their
        creation, there were."""
        number = {handle: index + 1 for index, handle in enumerate(handles)}
        counts: list[int] = []
        before = 0
        for nodes in self.seen:
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
    """A Triton kernel that a program or its generated code launched."""

    site: Site | None
    """The line of the generated code; None if the program itself launched it."""
    chain: tuple[Site, ...]
    launches: tuple[int, int]


class _Recorder(OpRecorder):
    """Names the ops of a capture; ``launches`` of a call are numbers of positions."""

    modules: RootedModuleStack

    def __init__(self, chains: Chains) -> None:
        self.kernels: list[_Launch] = []
        self.generated: dict[int, Site] = {}
        """The lines of generated code that made calls, by their index."""
        self.uses: list[tuple[tuple[int, int], list[tuple[int, bool]]]] = []
        """Of calls: their launches, and the storages that they read or write, by number."""
        self.failed = set[int]()
        """The calls that raised an error, by their index."""
        self._may_be_generated = has_compiled()
        self.positions = _Positions()
        super().__init__({}, Annotations(), self.positions.note)
        self.modules = RootedModuleStack(chains)
        self.hooks: AbstractContextManager[object] = self.modules
        """To be entered while the capture is watched."""
        self._chains = chains
        self._waiting: tuple[int, tuple[Site, ...]] = -1, ()
        """A backward, and the chain that waits for it."""

    def begin(self, func: Any, caller: Any) -> OpCall:
        call = super().begin(func, caller)
        site = _generated_site(_sites(caller)) if self._may_be_generated else None
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
            except BaseException:
                self.failed.add(call.index)
                raise
            finally:
                call.launches = start, self.launch_count()
        self.note_made(call)
        return result

    def _launch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        start = self.launch_count()
        try:
            return original(*args, **kwargs)
        finally:
            launches = start, self.launch_count()
            frame = sys._getframe(1)
            site = _generated_site(_sites(frame))
            self.kernels.append(_Launch(site, chain_of(frame) or self.waiting_chain(), launches))

    def launching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of the method that launches Triton kernels."""
        return lambda *args, **kwargs: self._launch(original, *args, **kwargs)

    def watching(self) -> AbstractContextManager[None]:
        """While entered, the ops are recorded."""
        return op_key.watch(self.observe)

    def was_intact_before(self, call: OpCall) -> bool:
        """Whether the capture was still valid when this op, whose launches were noted, began."""
        return self.positions.seen[call.launches[0]] != INVALIDATED

    def was_intact_after(self, call: OpCall) -> bool:
        """Whether it was when the op was over."""
        return self.positions.seen[call.launches[1]] != INVALIDATED

    def finish(self, give_way: Callable[[], object]) -> _Recorder:
        """The capture is over: what was recorded. On any thread; ``give_way`` is called often, and
        waits while another capture is in progress."""
        return self


class _NativeRecorder:
    """Has the ops noted in C++, and makes the same record of that when the capture is over."""

    def __init__(
        self, chains: Chains, native: Any, settings: Any = None, within: FrameType | None = None
    ) -> None:
        """``settings``: what ``_settings`` returns. ``within``: the frame that runs the capture."""
        # The program waits for this, and for all that is not put off until `finish`.
        self._chains = chains
        self._native = native
        settings = settings or _settings(native)
        self.device = torch.cuda.current_device()
        self._log = native.Log(settings, self.device, within)
        self.hooks = None  # the frames say which module runs

    def launching(self, original: Callable[..., Any]) -> Any:
        return _watched_launch(self._native, original)

    def watching(self) -> AbstractContextManager[None]:
        return op_key.watch_natively(self._native, self._log)

    def outside(self) -> dict[int, int]:
        """The keys of the storages from outside that the ops have used and that live, by number."""
        return dict(self._log.outside())

    def finish(self, give_way: Callable[[], object]) -> _Recorder:
        """See ``_Recorder.finish``."""
        result = _Recorder(self._chains)
        result.positions.seen = list(map(tuple, self._log.positions()))
        result.positions.streams = self._log.streams()
        frames = self._log.frames()
        autograd_nodes = self._log.autograd_nodes()
        threads: dict[int, ThreadState] = defaultdict(ThreadState)
        home, next_sequence = self._log.home()
        threads[home].next_sequence = next_sequence
        waitings = [self._chains.extended(reversed(each), ()) for each in self._log.waitings()]

        def sites(frame: int) -> Iterator[Site]:
            while frame >= 0:
                code, instruction, _, frame = frames[frame]
                yield code, instruction

        names = RootedModuleNames()
        places: list[tuple[Chain, Running | None]] = []
        """The chain of each frame, and the module that it runs in."""
        for code, instruction, module, outer in frames:
            chain, running = places[outer] if outer >= 0 else ((), None)
            if module is not None:
                running = names.running(module, running)
            if not is_internal(code):
                chain = self._chains.extended([(code, instruction)], chain)
            places.append((chain, running))

        @cache
        def generated(frame: int) -> Site | None:
            return _generated_site(sites(frame))

        calls = result.record.calls
        for (
            name, frame, thread, waiting, node, sequence, before, after, *launches,
        ), uses in zip(self._log.calls(), self._log.uses(), strict=True):  # fmt: skip
            give_way()
            if uses and not looks_at_shapes(name):
                changed = [] if overwrites(name) else [(each, False) for each, _ in uses]
                result.uses.append(((launches[0], launches[1]), [*uses, *changed]))
            outside, running = places[frame] if frame >= 0 else ((), None)
            if not outside and waiting >= 0:
                outside = waitings[waiting]
            if not name:
                result.kernels.append(
                    _Launch(generated(frame), outside, (launches[0], launches[1]))
                )
                continue
            call = OpCall(
                len(calls),
                name,
                outside,
                None,  # no capture of a run needs its innermost frame
                running,
                (),
                thread,
                launches=(launches[0], launches[1]),
            )
            if node >= 0:
                call.autograd_node, call.autograd_sequence = autograd_nodes[node], sequence
            if result._may_be_generated and (site := generated(frame)) is not None:
                result.generated[call.index] = site
            result.note_made_by(call, threads[thread], before)
            calls.append(call)
            if after is None:
                result.failed.add(call.index)
            else:
                result.note_made_by(call, threads[thread], after)
        return result


@lru_cache(2)
def _watched_launch(native: Any, original: Callable[..., Any]) -> Any:
    return native.watched_launch(original)


def _settings(native: Any) -> Any:
    """The settings of all logs, as long as the driver's function is the same one."""
    return _settings_for(native, *capture_info_address())


@cache
def _settings_for(native: Any, query: int, with_edges: bool) -> Any:
    return native.Settings(
        query,
        with_edges,
        _LAUNCH_NOTHING,
        current_raw_stream,
        partial(chain_or_waiting, None),
        CALL_MODULE_CODE,
        look,
    )


def _frame_of_capture(frame: FrameType) -> FrameType | None:
    """The caller that has entered ``torch.cuda.graph``, or called ``capture_begin``: it runs until
    the capture is over, unless that is begun in a function of the program's own."""
    for each in callers(frame):
        file = each.f_code.co_filename
        part = package_part(file)
        if part != GRAPHS and not part.startswith("/cgtool/") and file != contextlib.__file__:
            return each
    return None


def _giving_way(
    origins: Iterable[Provenance], give_way: Callable[[], object]
) -> Iterator[Provenance]:
    for origin in origins:
        give_way()
        yield origin


def _sites(frame: FrameType | None) -> Iterator[Site]:
    return ((each.f_code, each.f_lasti) for each in callers(frame))


def _generated_site(sites: Iterable[Site]) -> Site | None:
    """The frame of generated code that calls PyTorch; None if the user's code does. ``sites``: the
    frames, innermost first."""
    for code, instruction in sites:
        if is_generated(code.co_filename):
            return code, instruction
        if not is_internal_file(code.co_filename):
            break
    return None


_watched = threading.Lock()
"""One capture at a time has its ops watched: the others of other threads do not."""


class _Watch:
    """A capture."""

    _stream: int

    def __init__(
        self, captures: Captures, table: OriginTable, chain: Chain, *, compiled: bool
    ) -> None:
        """``chain``: the calls that lead to the capture. ``compiled``: Inductor captures code that
        it generated, and no guard is checked meanwhile."""
        self._captures = captures
        self._table = table
        self._recorder: _Recorder | _NativeRecorder | None = None
        self._chain = chain
        self._is_compiled = compiled
        self._ends: list[Callable[[], object]] = []
        """Functions to call at the end, last first. The program waits, and an ``ExitStack`` is
        slow."""
        self._outside: tuple[int, ...] = ()
        """The numbers of the storages from outside."""
        self._nodes = defaultdict[tuple[int, bool], dict[int, None]](dict)
        """By number of a storage, those that read it and those that write it: in order."""
        self._can_observe = op_key.is_supported() and (compiled or can_pause())
        self._native = captures.native_recorder() if self._can_observe else None

    def begin(self, _graph: Any) -> None:
        device = torch.cuda.current_device()
        self._stream = current_raw_stream(device)
        native, self._native = self._native, None
        if not (self._can_observe and _watched.acquire(blocking=False)):
            return
        self._ends.append(_watched.release)
        try:
            if native is None or native.device != device or not op_key.can_watch_natively():
                self._observe(self._captures.new_recorder())
            else:
                self._observe(native)
        except BaseException:
            self.stop()
            raise

    def _observe(self, recorder: _Recorder | _NativeRecorder) -> None:
        ends, self._recorder = self._ends, recorder
        if not self._is_compiled:
            self._captures.pauses.begin()
            ends.append(self._captures.pauses.end)
        if recorder.hooks is not None and not has_compiled():
            # They are those of all modules, which Dynamo's guards see.
            recorder.hooks.__enter__()
            ends.append(partial(recorder.hooks.__exit__, None, None, None))
        for point in kernel_launches():
            original = getattr(*point)
            setattr(*point, recorder.launching(original))
            ends.append(partial(setattr, *point, original))
        watching = recorder.watching()
        watching.__enter__()
        ends.append(partial(watching.__exit__, None, None, None))

    def read(self) -> Callable[[Callable[[], object]], Contents] | None:
        contents = self._captures.reader.read_captured(self._stream)
        if contents is None:
            return None

        def joined(give_way: Callable[[], object]) -> Contents:
            origins = self._origins(contents.handles, give_way)
            nodes = contents.nodes(_giving_way(origins, give_way))
            give_way()
            return nodes, contents.edges

        return joined

    def storages(self) -> list[StorageRef]:
        # Graph trees look at the addresses of compiled code before each replay.
        if self._is_compiled or not isinstance(self._recorder, _NativeRecorder):
            return []
        living = {
            number: StorageRef.by_key(key)
            for number, key in self._recorder.outside().items()
            if not weak_storage_expired(key)
        }
        self._outside = tuple(living)
        return list(living.values())

    def uses(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return [
            (tuple(self._nodes[number, False]), tuple(self._nodes[number, True]))
            for number in self._outside
        ]

    def with_cause(self, finding: Finding) -> Finding:
        if self._recorder is None:
            return finding
        from cgtool.detectors.capture_errors import ended_after, ended_during, ended_in

        recorder = self._recorder.finish(lambda: None)
        launching = [call for call in recorder.record.calls if call.launches != (0, 0)]
        intact = list(itertools.takewhile(recorder.was_intact_after, launching))
        following = launching[len(intact) : len(intact) + 1]
        for call in filter(recorder.was_intact_before, following):
            frames = frames_of(call.chain or self._chain)
            if call.index in recorder.failed:
                return ended_in(call.name, frames)
            return ended_during(finding, call.name, frames)
        for call in intact[-1:]:
            return ended_after(finding, call.name, frames_of(call.chain or self._chain))
        return finding

    def stop(self) -> None:
        try:
            while self._ends:
                self._ends.pop()()
        finally:
            if self._ends:  # one has raised
                self.stop()

    def _origins(self, handles: Sequence[int], give_way: Callable[[], object]) -> list[Provenance]:
        origins: list[Provenance] = [(None, None, None)] * len(handles)
        if self._recorder is None:
            return origins
        recorder = self._recorder.finish(give_way)
        counts = recorder.positions.counts(handles)
        for (start, end), uses in recorder.uses:
            for use in uses:
                self._nodes[use] |= dict.fromkeys(range(counts[start], counts[end]))
        numbers = {self._stream: 0}

        def stream_at(position: int) -> int:
            """The number of its stream in this graph."""
            return numbers.setdefault(recorder.positions.streams[position], len(numbers))

        for kernel in recorder.kernels:
            give_way()
            start, end = (counts[position] for position in kernel.launches)
            if start < end:
                origin = self._generated(kernel.site, None, kernel.chain)
                origins[start:end] = [(origin, None, stream_at(kernel.launches[1]))] * (end - start)
        for call in recorder.record.calls:
            give_way()
            start, end = call.launches
            start, end = counts[start], counts[end]
            if start < end:
                stream = stream_at(call.launches[1])
                site = recorder.generated.get(call.index)
                if site is not None:
                    origin = self._generated(site, call.name, call.chain or self._chain)
                else:
                    origin = self._table.add(call, recorder.record)
                origins[start:end] = [(origin, call.index, stream)] * (end - start)
        return origins

    def _generated(self, site: Site | None, op: str | None, chain: Sequence[Site]) -> int:
        """The origin of what a line of generated code launched, which ``chain`` calls."""
        source = Source() if site is None else self._captures.code.source(site)
        return self._table.add_generated(op, source, chain)


class Captures:
    """The captures of this process: what they share."""

    def __init__(self, code: GeneratedCode, patches: Patches) -> None:
        """``patches``: until they are undone."""
        self.code = code
        self.pauses = Pauses(patches, op_key.paused)
        self._patches = patches
        self.native: Any = None
        """The module of ``op_watch``, as soon as it is compiled."""
        self._settings: Any = None
        self.functions = FunctionTable()
        self.reader = GraphReader(self.functions, AddressBook(Trace(), (), (), ()))
        self.chains = Chains()
        self._look_for_native()

    def _look_for_native(self) -> None:
        native = op_watch.load()
        if native is None:
            return
        self._settings = _settings(native)
        look_up_chains_in_cpp(native.chain_of)
        self._patches.callback(look_up_chains_in_cpp, None)
        self.functions.native = self.reader.native = native_reader(native)
        self.native = native

    def free_bytes(self) -> int | None:
        """Free memory of the current device, also during a capture."""
        if self.reader.native is None:
            return free_bytes()
        known: int | None = self.reader.native.free_bytes()
        return known

    def new_recorder(self) -> _Recorder | _NativeRecorder:
        """The recorder of the capture that a caller has begun."""
        return self.native_recorder() or _Recorder(self.chains)

    def native_recorder(self) -> _NativeRecorder | None:
        """The recorder in C++ of the capture that a caller begins, or has begun; None if it must be
        one in Python."""
        if self.native is None:
            self._look_for_native()
        if self.native is None or not op_key.can_watch_natively():
            return None
        within = _frame_of_capture(sys._getframe(1))
        return _NativeRecorder(self.chains, self.native, self._settings, within)

    def watch(self, table: OriginTable, chain: Chain, *, compiled: bool) -> _Watch:
        """To follow the next capture of this thread; ``table`` takes the origins of its nodes. The
        rest is as of ``_Watch``."""
        return _Watch(self, table, chain, compiled=compiled)
