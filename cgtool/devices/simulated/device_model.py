"""The model behind the simulated device: its streams and events follow order, forks and joins."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from cgtool.detectors.function_rules import is_python
from cgtool.detectors.generator_states import sets_other_seed
from cgtool.detectors.streams import CaptureInProgress, Frontier, Lane
from cgtool.devices.simulated.owners import RecordedOwners
from cgtool.findings import code
from cgtool.model import clock
from cgtool.model.capture import UNCOMPILED, Caveat
from cgtool.observe.frames import chain_of
from cgtool.observe.script.state import EXTERNAL, is_external
from cgtool.torch_compat.dispatch_keys import Args
from cgtool.torch_compat.storages import StorageRef

UNCOMPILED_NOTE = Caveat(
    UNCOMPILED,
    "the simulated device compiles nothing: code under torch.compile runs eagerly, its ops unfused",
)
_FIRST_HANDLE = 1 << 32


def _gpus() -> tuple[int, int]:
    """(index of the GPU of this process, how many there are): each process that torchrun starts on
    a machine has its own."""
    ranks = (os.environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    index, count = (int(rank) if rank.isdecimal() else 0 for rank in ranks)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    # One that hides the others has number 0.
    is_only = bool(visible) and "," not in visible
    return (index, count) if index < count and not is_only else (0, 1)


INDEX, COUNT = _gpus()
GPU = torch.device("cuda", INDEX)
"""The simulated GPU."""
EVENT_OR_STREAM_QUERY = code("event-or-stream-query")
RNG_STATE_ACCESS = code("rng-state-access")


class DeviceModel(CaptureInProgress):
    """The simulated GPU: its classes of streams and events, and the capture in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.stream_numbers = itertools.count()
        # Subclasses per device: user code uses torch.cuda.Stream in annotations and isinstance.
        self.stream_class: type[Stream] = type("Stream", (Stream,), {"owner": self})
        self.external_stream_class: type = type(
            "ExternalStream", (_ExternalStream,), {"owner": self}
        )
        self.event_class: type[Event] = type("Event", (Event,), {"owner": self})
        self.by_handle: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self.default: Stream = self.stream_class(name="default stream")
        self.default.cuda_stream = 0
        self.generator: DefaultGenerator = DefaultGenerator()
        self.generator.owner = self
        self.sync_debug_mode = 0
        self._pools = itertools.count(1)
        self.random_state: Callable[[str, torch.Tensor], None] = lambda _action, _state: None
        """Called with ``saved`` or ``restored`` and the state when captured code does either."""
        self.is_warm = False
        """The first warm-up of an entry has begun."""
        self.overrides_stale_streams = False
        """Autograd runs nodes of other streams on that of the capture."""
        self.memory: RecordedOwners = RecordedOwners()
        self.uncompiled: tuple[Caveat, ...] = ()
        """A note, if captured code calls code of ``torch.compile``."""
        self._constants: list[torch.Tensor] = []
        """Of compiled code, which keeps them."""
        self.differences: dict[str, Caveat] = {}
        """By code: what a GPU would run instead of captured ops."""

    def stream_of(self, handle: int) -> Stream:
        """A stream by the handle that CUDA knows it by."""
        known = self.default if handle == 0 else self.by_handle.get(handle)
        return known or self.stream_class()

    def stream_by_id(self, stream_id: int) -> Stream:
        """A stream by the number that PyTorch knows it by."""
        return self.stream_of(_FIRST_HANDLE + stream_id if stream_id else 0)

    def new_pool(self) -> tuple[int, int]:
        """``torch.cuda.graph_pool_handle``."""
        return 0, next(self._pools)

    def is_dead(self, storage: StorageRef) -> bool:
        return self.memory.is_dead(storage)

    def note_library(self, name: str, args: Args) -> None:
        """An op is about to run on the device, which may call a CUDA library."""

    def note_difference(self, caveat: Caveat) -> None:
        """A GPU may run another op than the one that runs next."""
        if self.capturing:
            self.differences[caveat.code] = caveat

    def constant(self, made: torch.Tensor, data: Any) -> torch.Tensor:
        """What the running code gets for a tensor ``made`` of ``data``: in compiled code, each
        replay writes numbers anew."""
        if not (self.capturing and self.is_compiled and is_python(data)):
            return made
        self._constants.append(made)
        if made.dim():
            written = made.detach().clone()
        else:
            written = torch.full_like(made, data, requires_grad=False)
        return written.requires_grad_(made.requires_grad)

    def note_compiled(self) -> None:
        """Code of ``torch.compile`` is called."""
        if self.capturing:
            self.uncompiled = (UNCOMPILED_NOTE,)


class _Entered(threading.local):
    """What a thread has left for a stream."""

    def __init__(self) -> None:
        self.before: list[Stream] = []


class Stream(Lane):
    """Replaces ``torch.cuda.Stream``."""

    owner: DeviceModel
    device = GPU
    device_index = INDEX
    device_type = 1
    stream_id: int
    cuda_stream: int
    priority: int
    _of_thread: _Entered

    def __new__(
        cls, _device: Any = None, priority: int = 0, *, stream_id: int | None = None, **kwargs: Any
    ) -> Stream:
        if stream_id is not None:
            return cls.owner.stream_by_id(stream_id)
        if "stream_ptr" in kwargs:
            return cls.owner.stream_of(kwargs["stream_ptr"])
        stream = super().__new__(cls)
        stream.stream_id = next(cls.owner.stream_numbers)
        name = kwargs.get("name", f"stream {stream.stream_id}")
        Lane.__init__(stream, name, chain_of(sys._getframe(1)))
        stream.priority = priority
        # Numbers up to two name default streams.
        stream.cuda_stream = _FIRST_HANDLE + stream.stream_id
        cls.owner.by_handle[stream.cuda_stream] = stream
        stream._of_thread = _Entered()
        return stream

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: the stream may have been there before."""

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def wait_stream(self, stream: Stream) -> None:
        self.owner.wait(self, stream.joined, stream.frontier, stream)

    def wait_event(self, event: Event) -> None:
        # Waiting for an event that was not recorded does nothing. In a capture, the wait for an
        # external one becomes a node, and joins no stream.
        if event.recorded and not getattr(event, EXTERNAL):
            self.owner.wait(self, event.joined, event.frontier, event.stream)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or self.owner.event_class()
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return self.owner.capturing and self.joined == self.owner.capture_id

    def synchronize(self) -> None:
        self.owner.refuse_synchronize("Stream.synchronize()")

    def query(self) -> bool:
        self.owner.refuse(EVENT_OR_STREAM_QUERY, "Stream.query()")
        return True

    def __enter__(self) -> Stream:
        # Like PyTorch's, it can be entered more than once.
        self._of_thread.before.append(self.owner.current)
        self.owner.current = self
        return self

    def __exit__(self, *_exc: Any) -> None:
        self.owner.current = self._of_thread.before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)


class _ExternalStream:
    """Replaces ``torch.cuda.ExternalStream``: the stream with a handle."""

    owner: DeviceModel

    def __new__(cls, stream_ptr: int, *_args: Any, **_kwargs: Any) -> Any:
        return cls.owner.stream_of(stream_ptr)


class Event:
    """Replaces ``torch.cuda.Event``."""

    owner: DeviceModel
    device = GPU
    recorded_ns = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        setattr(self, EXTERNAL, is_external(args, kwargs))
        self.recorded = False
        self.joined: int | None = None
        self.frontier: Frontier = frozenset()
        self.stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.owner.current
        self.recorded, self.recorded_ns = True, clock.perf_counter_ns()
        self.joined, self.frontier, self.stream = stream.joined, stream.frontier, stream

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.owner.current).wait_event(self)

    def synchronize(self) -> None:
        self.owner.refuse_synchronize("Event.synchronize()")

    def query(self) -> bool:
        self.owner.refuse(EVENT_OR_STREAM_QUERY, "Event.query()")
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """In milliseconds of the host, which runs the ops."""
        self.owner.refuse(EVENT_OR_STREAM_QUERY, "Event.elapsed_time()")
        if not (self.recorded and end_event.recorded):
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event.recorded_ns - self.recorded_ns) / 1e6


class DefaultGenerator(torch.Generator):
    """``torch.cuda.default_generators[0]``: all numbers, those of the host too, are drawn from
    PyTorch's default generator."""

    owner: DeviceModel
    device = GPU

    def _refuse(self, call: str) -> None:
        self.owner.refuse(
            RNG_STATE_ACCESS,
            f"torch.cuda.{call}()",
            why="the generator belongs to the graph while it is captured: PyTorch refuses to seed "
            "it again",
            fix="seed before the replay, not in the captured code",
        )

    def manual_seed(self, seed: int) -> DefaultGenerator:
        if sets_other_seed(seed):
            self._refuse("manual_seed")
        torch.default_generator.manual_seed(seed)
        return self

    def seed(self) -> int:
        self._refuse("seed")
        return torch.default_generator.seed()

    def initial_seed(self) -> int:
        return torch.default_generator.initial_seed()

    def get_state(self) -> torch.Tensor:
        state = torch.default_generator.get_state()
        if self.owner.capturing:
            self.owner.random_state("saved", state)
        return state

    def set_state(self, new_state: torch.Tensor) -> DefaultGenerator:
        torch.default_generator.set_state(new_state)
        if self.owner.capturing:
            self.owner.random_state("restored", new_state)
        return self

    def clone_state(self) -> torch.Generator:
        # `torch.Generator` is the simulated device's here.
        made = torch.Generator("cuda")
        made.set_state(torch.default_generator.get_state())
        return made

    def graphsafe_get_state(self) -> DefaultGenerator:
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> DefaultGenerator:
        return self.set_state(state.get_state())
