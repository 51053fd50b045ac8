"""The operations of a device that the recorder needs; ``recorded_device`` of cuda and of simulated
implement them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

from cgtool.model.capture import Contents, Environment, Frame, Function
from cgtool.model.finding import Finding
from cgtool.model.journal import JournalWriter
from cgtool.model.records import Allocated
from cgtool.torch_compat.patches import Patches

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from cgtool.observe.frames import Chain
    from cgtool.observe.origins import OriginTable
    from cgtool.torch_compat.allocator import PoolSegment
    from cgtool.torch_compat.storages import StorageRef


GiveWay = Callable[[], object]
"""Called often by work that takes milliseconds, and waits while a capture is in progress."""


class Watch(Protocol):
    """A capture, as a device follows it."""

    def begin(self, graph: Any) -> None:
        """It has begun."""

    def read(self) -> Callable[[GiveWay], Contents] | None:
        """Read what was captured, at the end of the capture; None if it cannot be read. What this
        returns is called once, later, by any thread."""

    def storages(self) -> Sequence[StorageRef]:
        """The storages from outside that the captured ops used. After ``read``."""

    def uses(self) -> Sequence[tuple[tuple[int, ...], tuple[int, ...]]]:
        """For each of them, the nodes that read it and those that write it. Any thread may ask,
        after it has the contents."""

    def with_cause(self, finding: Finding) -> Finding:
        """The finding with the op that ended the capture, or the last one before that; ``finding``
        itself if neither is known. After ``read``."""

    def stop(self) -> None:
        """The capture is over."""


class MemoryLife(Protocol):
    """Memory that graphs use, while it is followed."""

    def look(self) -> None:
        """Look whether it is still there."""


class ReplayTimes(Protocol):
    """GPU times of replays, which a device notes in the journal (``--times``)."""

    def new_executable(self, graph: Any, number: int) -> None:
        """A capture has an executable graph, or another one than before."""

    def finish(self) -> None:
        """The recording ends."""


class SteppedGraph(Protocol):
    """A graph whose nodes run one at a time (``--step``)."""

    def step(self, replay: Callable[[Any], None], graph: Any, *, is_idle: bool) -> None:
        """Run all nodes of ``graph``. ``replay`` runs none of them anymore, and sets the seeds and
        offsets of generators. ``is_idle``: no capture is in progress. Raises StepFailedError with
        the error that the program is to get."""

    def evidence(self, node: int) -> tuple[str, ...]:
        """Of a node that has failed: its kernel and launch, and where its pointers lead."""

    def close(self) -> None:
        """It is replayed no more."""


class RecordedDevice(Protocol):
    """A device whose graphs can be followed."""

    graph_class: Any
    """Has ``capture_begin``, ``capture_end``, ``replay`` and ``reset``."""
    simulated: bool

    def environment(self) -> Callable[[], Environment]:
        """A function that returns the environment of the current device, later and on any
        thread."""

    def notes_ops_in_python(self) -> bool:
        """Whether captures are noted in Python, and a faster recorder could be compiled. After
        ``prepare``."""

    def when_used(self, call: Callable[[], None]) -> None:
        """Call back when the program first uses the device."""

    def prepare(self) -> None:
        """Do in advance what would take long in the first capture. Any thread may do it."""

    def watch(self, table: OriginTable, chain: Chain, *, compiled: bool) -> Watch:
        """To follow the next capture of this thread, which the calls of ``chain`` begin. ``table``
        takes the origins of its nodes. ``compiled``: Inductor captures code that it generated."""

    def follow(self, ref: StorageRef, gone: Callable[[str, Chain, int], None]) -> MemoryLife:
        """Follow the memory of a storage, as long as what this returns is kept. ``gone`` is called
        once it was given back, or when ``look`` sees that: how (``LedgerMemory.how``), the calls
        that did it, and when by the system clock (ns)."""

    def allocated_at(self, addresses: Set[int]) -> Mapping[int, tuple[Frame, ...]]:
        """The calls that allocated memory at some of these addresses, innermost first: where
        PyTorch keeps them, which it does once lines of allocations are asked for."""

    def digests(self, tensors: Sequence[torch.Tensor]) -> list[int | None]:
        """Numbers that differ where the bytes of some memory do; None for memory that cannot be
        read now, without a wait for the program's own work. No thread may capture."""

    def functions(self) -> tuple[Function, ...]:
        """All kernel functions seen so far."""

    def reserved_bytes(self) -> int | None:
        """Memory that the allocator has reserved on the device."""

    def free_bytes(self) -> int | None:
        """Free memory of the current device; also works during a capture."""

    def stream(self) -> int | None:
        """The handle of the current stream."""

    def new_allocations(self, *, lines: bool = False) -> Sequence[Allocated]:
        """Memory that PyTorch's allocator has reserved on the device since the last call. Any
        thread may call it, also during a capture. On a GPU each has the time of the call, and its
        line only if it was called with ``lines`` before."""

    def pool_segments(self, pool: tuple[int, int]) -> Sequence[PoolSegment]:
        """Memory that a pool has reserved on the device."""

    def step_graphs(self, patches: Patches) -> Callable[[Any], SteppedGraph]:
        """Prepare the program for ``--step``. What this returns is called with a graph before its
        first replay, and raises an error if that must run whole."""

    def time_replays(
        self, journal: Callable[[], JournalWriter], say: Callable[[str], None], patches: Patches
    ) -> ReplayTimes | None:
        """Time replays on the GPU; None without a GPU. ``say`` is called with what is not timed."""
