"""The state of a script's CUDA graphs, the memory that they touch, and the order of streams."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from cgtool.model.capture import Frames
from cgtool.observe.effects import reads_values, written_by
from cgtool.observe.frames import frames_of
from cgtool.observe.ops import OpCall, Record
from cgtool.observe.tensors import key_of, listed_tensors, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.storages import Layout, StorageRef
from cgtool.torch_compat.weak import Weak

PoolId = tuple[int, int]


@dataclass(slots=True)
class Access:
    """One eager op or one replay that reads or writes a buffer."""

    stream: int
    """Handle of the stream that it was submitted to."""
    tick: int
    """Position in the stream (``StreamOrder.submit``)."""
    time: int
    """Value of ``ObservedScript.clock``."""
    graph: WatchedGraph | None
    """The graph that was replayed; None for an eager op."""
    frames: Frames = ()


@dataclass(slots=True, eq=False)
class Buffer:
    """One storage that a graph touches. Holds no reference that keeps the storage alive."""

    key: int
    """Its ``storage_key``, which no other storage gets while ``ref`` is held."""
    ref: StorageRef
    bytes: int
    place: str
    """``device``, ``host``, ``pinned``."""
    address: int
    """On the device; on the simulated one an address of the allocator's model."""
    allocated_in: WatchedGraph | None = None
    """The graph in whose capture it was allocated."""
    allocated_by: OpCall | None = None
    """The op of that capture."""
    last_write: Access | None = None
    last_read: Access | None = None
    """The last replay that reads it."""

    @property
    def end(self) -> int:
        return self.address + self.bytes


class Buffers:
    """All storages that some graph reads, writes or allocates."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}
        self._aliases: list[StorageRef] = []
        """Kept, so that no other storage gets the key of one."""

    def find(self, tensor: torch.Tensor) -> Buffer | None:
        """The buffer of a tensor, if some graph touches it."""
        key = key_of(tensor)
        return None if key is None else self._buffers.get(key)

    def allocator_of(self, tensor: torch.Tensor) -> WatchedGraph | None:
        """The graph in whose capture the memory of a tensor was allocated, if one was."""
        buffer = self.find(tensor)
        return None if buffer is None else buffer.allocated_in

    def by_key(self, key: int) -> Buffer | None:
        return self._buffers.get(key)

    def add(self, storage: StorageRef, place: str, address: int) -> Buffer:
        """The buffer of a storage, made if need be."""
        buffer = self._buffers.get(storage.key)
        if buffer is None:
            buffer = Buffer(storage.key, storage, storage.bytes, place, address)
            self._buffers[storage.key] = buffer
        return buffer

    def add_alias(self, storage: StorageRef) -> None:
        """Another storage may have the memory of a buffer: what DLPack makes of a tensor."""
        for buffer in list(self._buffers.values()):
            first = buffer.ref.address
            if not buffer.ref.expired() and first <= storage.address < first + buffer.bytes:
                self._aliases.append(storage)
                self._buffers.setdefault(storage.key, buffer)

    def __len__(self) -> int:
        return len(self._buffers)


@dataclass(eq=False)
class Op:
    """One op, eager or captured."""

    call: OpCall | None
    """None for eager ops."""
    func: Any
    name: str
    args: Args
    kwargs: Kwargs

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        """Among the arguments."""
        return list(tensors_in((self.args, self.kwargs)))

    @cached_property
    def written(self) -> list[torch.Tensor]:
        """Arguments that the op writes."""
        return list(written_by(self.func, self.args, self.kwargs))

    def copied(self, result: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Source and target, if this is a copy, which has returned ``result``; a number may be
        "copied" too (``x.copy_(0.5)``)."""
        if self.name == "aten::_to_copy":
            return self.args[0], result
        if self.name == "aten::copy_" and isinstance(self.args[1], torch.Tensor):
            return self.args[1], self.args[0]
        return None

    def made(self, result: Any) -> list[torch.Tensor]:
        """The tensors of a result that do not share memory with an argument; `torch.tensor` shows
        no other op than one that passes its tensor on."""
        is_new = self.name.startswith("aten::lift_fresh")
        given = set() if is_new else set(map(key_of, self.tensors))
        return [tensor for tensor in listed_tensors((result,)) if key_of(tensor) not in given]

    @property
    def non_blocking(self) -> bool:
        """Whether it is a copy that the host need not wait for."""
        return True in self.args[2:] or bool(self.kwargs.get("non_blocking"))

    @cached_property
    def read(self) -> list[torch.Tensor]:
        """Arguments whose values the op reads, and that it does not write."""
        if not reads_values(self.func, self.name):
            return []
        written = set(map(id, self.written))
        return [tensor for tensor in self.tensors if id(tensor) not in written]


@dataclass(slots=True, eq=False)
class ExternalUse:
    """How a graph uses a buffer that it did not allocate."""

    buffer: Buffer
    call: OpCall
    """The first op that touches the buffer."""
    tensor: Weak[torch.Tensor]
    layout: Layout
    """Layout of that tensor, which may be a view that does not live on."""
    data_ptr: int
    written: bool = False
    first_is_write: bool = False
    """The graph overwrites the buffer before it reads it."""
    rows: int = 0
    """How many of the first rows of ``shape`` the graph reads."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape


@dataclass(eq=False)
class GraphedCallable:
    """One callable that ``make_graphed_callables`` has graphed."""

    samples: tuple[Weak[torch.Tensor], ...] = ()
    """The sample arguments, flattened: the static inputs of the graph."""
    structure: Any = None
    """How the sample arguments are nested; None of a backward."""
    function: Callable[[], Any] | None = None
    """The graphed function, or the forward of a module, while it is alive; None if it cannot be
    kept."""
    static_keys: frozenset[int | None] = frozenset()
    """Keys of their storages."""
    module: Callable[[], torch.nn.Module | None] = lambda: None
    """A weak reference; a function has no module."""
    training: bool = True
    trainable: dict[int, bool] = field(default_factory=dict)
    """``requires_grad`` of each parameter at the capture, by identity."""
    again: bool = False
    """Its forward was a graph already."""
    called_twice: bool = False
    """It was called again before the backward of the call before."""


Clock = dict[int, int]
"""By stream: how much of its work comes before."""


_CLOCK, _STREAM = "_cgtool_clock", "_cgtool_stream"
EXTERNAL = "_cgtool_external"
"""Attribute of an event that was made with ``external=True``."""


def is_external(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether ``torch.cuda.Event`` gets ``external=True``, its fourth parameter."""
    return bool(kwargs.get("external", args[3] if len(args) > 3 else False))


def merge(into: Clock, other: Clock) -> None:
    """Everything that comes before ``other`` now also comes before ``into``."""
    for stream, count in other.items():
        if count > into.get(stream, 0):
            into[stream] = count


class StreamOrder:
    """The order of work on the streams of a device, by vector clocks.

    Each stream counts the work that is submitted to it. An event carries the counts of its stream,
    a wait takes them over, and a wait of the host takes them over for all streams. Streams are
    named by their handles; 0 is the default stream, which waits for no other: PyTorch makes its
    streams with cudaStreamNonBlocking.
    """

    def __init__(self) -> None:
        self._streams: dict[int, Clock] = {}
        self._host: Clock = {}
        self.waits = 0
        """How often the host has waited."""
        self.own_waits: dict[int, tuple[int, Frames]] = {}
        """By stream: when and where it last waited for its own work, which orders nothing."""

    def _clock(self, stream: int) -> Clock:
        return self._streams.setdefault(stream, {})

    def submit(self, stream: int) -> int:
        """The number of a new piece of work on a stream."""
        clock = self._clock(stream)
        merge(clock, self._host)
        clock[stream] = clock.get(stream, 0) + 1
        return clock[stream]

    def has_several_streams(self) -> bool:
        """Whether work was submitted to more than one stream, or one has waited for another."""
        return len(self._streams) > 1

    def before(self, stream: int, tick: int, on: int) -> bool:
        """True if work ``tick`` of ``stream`` is done before anything submitted to ``on`` now."""
        if stream == on:
            return True
        return self._clock(on).get(stream, 0) >= tick or self._host.get(stream, 0) >= tick

    def done(self, stream: int, tick: int) -> bool:
        """True if the host knows that the work is done."""
        return self._host.get(stream, 0) >= tick

    def wait_stream(self, stream: int, other: int) -> None:
        merge(self._clock(stream), self._clock(other))

    def record(self, event: Any, stream: int) -> None:
        # On the event itself: CUDA's leave weak references dangling (`kept_values.weakly`).
        setattr(event, _CLOCK, dict(self._clock(stream)))
        setattr(event, _STREAM, stream)

    def create(self, event: Any) -> None:
        """A graph will record the event."""
        if not self.has(event):
            setattr(event, _CLOCK, {})

    def has(self, event: Any) -> bool:
        """Whether there is something to wait for: PyTorch creates an event when it is first
        recorded."""
        return hasattr(event, _CLOCK)

    def is_of(self, event: Any, stream: int) -> bool:
        """Whether an event was recorded on a stream."""
        return bool(getattr(event, _STREAM, None) == stream)

    def wait_event(self, stream: int, event: Any) -> None:
        merge(self._clock(stream), getattr(event, _CLOCK, {}))

    def host_waits_for_event(self, event: Any) -> None:
        self.waits += 1
        merge(self._host, getattr(event, _CLOCK, {}))

    def host_waits(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all of them."""
        self.waits += 1
        for waited in [stream] if stream is not None else list(self._streams):
            merge(self._host, self._clock(waited))


@dataclass(slots=True, eq=False)
class EagerResult:
    """Memory on the device that eager ops have filled with what they made of a graph's output."""

    ref: StorageRef
    stream: int
    tick: int
    """Position in the stream (``StreamOrder.submit``)."""
    time: int
    """Value of ``ObservedScript.clock``."""


class EagerResults:
    """By storage. Those that are freed, and those that the host has waited for, are forgotten."""

    _FEWEST = 64

    def __init__(self) -> None:
        self._results: dict[int, EagerResult] = {}
        self._most = self._FEWEST
        """With more than this, those that are of no interest anymore are forgotten."""

    def find(self, tensor: torch.Tensor) -> EagerResult | None:
        key = key_of(tensor)
        return None if key is None else self._results.get(key)

    def add(self, tensor: torch.Tensor, order: StreamOrder, work: tuple[int, int, int]) -> None:
        """The tensor is filled by ``work``: stream, position and time."""
        if len(self._results) >= self._most:
            # A copy: other threads go on adding results.
            for key, old in list(self._results.items()):
                if old.ref.expired() or order.done(old.stream, old.tick):
                    self._results.pop(key, None)
            self._most = max(self._FEWEST, 2 * len(self._results))
        ref = StorageRef(tensor)
        self._results[ref.key] = EagerResult(ref, *work)

    def forget(self, tensor: torch.Tensor) -> None:
        self._results.pop(key_of(tensor) or 0, None)

    def __len__(self) -> int:
        return len(self._results)


TensorKind = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of its numbers."""


@dataclass(slots=True, eq=False)
class MadeTensor:
    """A tensor that an op outside captures has made. Nothing keeps it alive."""

    ref: StorageRef
    kind: TensorKind
    time: int
    """Value of ``ObservedScript.clock``."""
    place: Frames


class Unread:
    """Tensors that ops outside captures have made, and that nothing has read since."""

    def __init__(self) -> None:
        self.kinds: set[TensorKind] = set()
        """Of the tensors that are noted."""
        self.read_kinds: set[TensorKind] = set()
        """Those of which one was read."""
        self._tensors: dict[int, MadeTensor] = {}
        """By key of their storage."""

    def ran(self, op: Op, result: Any, time: int, place: Callable[[], Frames]) -> None:
        """An op outside captures has run."""
        copied = op.copied(result)
        if copied is None:
            for tensor in op.read:
                self.read(tensor)
        else:
            # What is read now is the copy.
            self._tensors.pop(key_of(copied[0]) or 0, None)
        for tensor in op.made(result):
            kind = tuple(tensor.shape), tensor.dtype
            if kind in self.kinds:
                ref = StorageRef(tensor)
                self._tensors[ref.key] = MadeTensor(ref, kind, time, place())

    def read(self, tensor: torch.Tensor) -> None:
        """A replay, an op or the host reads a tensor."""
        known = self._tensors.pop(key_of(tensor) or 0, None)
        if known is not None:
            self.read_kinds.add(known.kind)

    def alive(self) -> list[MadeTensor]:
        """What the script still holds."""
        self._tensors = {key: each for key, each in self._tensors.items() if not each.ref.expired()}
        return list(self._tensors.values())


@dataclass(eq=False)
class WatchedGraph:
    """One ``CUDAGraph`` of the script, from ``capture_begin`` to the end of the script."""

    number: int
    graph: weakref.ref[Any]
    frames: Frames
    """Where ``capture_begin`` was called."""
    pool: PoolId | None
    """The pool passed to ``capture_begin``; after the capture, the graph's own."""
    own_pool: bool
    """No pool was passed."""
    mode: str
    """``capture_error_mode``."""
    stream: int
    began: int
    """``ObservedScript.clock`` at ``capture_begin``."""
    record: Record = field(default_factory=Record)
    external: dict[int, ExternalUse] = field(default_factory=dict)
    """By key of the buffer."""
    allocated: dict[int, Buffer] = field(default_factory=dict)
    """By key: what was allocated in the capture."""
    replaced: set[int] = field(default_factory=set)
    """The keys of what modules and gradients were at the capture, and are known not to be now."""
    ops: int = 0
    device_ops: int = 0
    op_names: set[str] = field(default_factory=set)
    """Names of the ops on the device."""
    only_ops: bool = True
    """Each of its nodes was launched by an op of PyTorch."""
    order: StreamOrder = field(default_factory=StreamOrder)
    """The order of work on the streams of its capture."""
    waits_for: list[Any] = field(default_factory=list)
    """Events for which each replay waits."""
    records: list[Any] = field(default_factory=list)
    """Events that each replay records."""
    last_calls: dict[int, tuple[int, OpCall]] = field(default_factory=dict)
    """By stream: position and call of the last op in its capture."""
    state: str = "capturing"
    """``capturing``, ``captured``, ``failed``, ``dropped``."""
    replays: int = 0
    last_replay: Access | None = None
    keep_graph: bool = False
    instantiated: bool = False
    """The script has called ``instantiate()``."""
    disturbed: bool = False
    """Something outside the captured code, already published, may have ended the capture."""
    callable: GraphedCallable | None = None
    """For graphs of ``make_graphed_callables``; an empty one for the graph of a backward."""
    made_with: tuple[GraphedCallable, ...] = ()
    """The callables of that call of ``make_graphed_callables``."""

    @property
    def name(self) -> str:
        return f"graph {self.number}"

    @property
    def replayable(self) -> bool:
        return self.state == "captured"

    def is_alternative_to(self, other: WatchedGraph) -> bool:
        """Whether another graph was captured at the same line, at another time: the script may
        have one graph for each value of something."""
        is_together = bool(self.made_with) and self.made_with is other.made_with
        return self is not other and self.frames == other.frames and not is_together

    def unjoined_at(self) -> Frames:
        """The last line of a stream that the capture stream does not wait for; () for none."""
        for stream, (tick, call) in self.last_calls.items():
            if not self.order.before(stream, tick, self.stream):
                return frames_of(call.chain)
        return ()

    def has_op(self, *names: str) -> bool:
        """Whether an op was captured whose name begins with one of these."""
        return any(name.startswith(names) for name in self.op_names)
