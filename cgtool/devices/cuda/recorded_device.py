"""A GPU whose graphs are recorded (``cgtool run``).

The program waits for what is imported here. What a capture needs is imported before the first one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence, Set
from functools import cached_property, partial
from typing import Any

import torch

from cgtool.model import clock
from cgtool.model.capture import Environment, Frame, Function
from cgtool.observe.frames import Chain
from cgtool.observe.generated import GeneratedCode
from cgtool.observe.waiting import chain_or_waiting
from cgtool.torch_compat import op_watch
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import MissingPrivateName, current_raw_stream, when_initialized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cgtool.devices.cuda.allocations import Allocations
    from cgtool.devices.cuda.recording import Captures
    from cgtool.devices.cuda.replay_times import ReplayTimes
    from cgtool.devices.cuda.steps import CudaSteppedGraph
    from cgtool.model.journal import JournalWriter
    from cgtool.model.records import Allocated
    from cgtool.observe.origins import OriginTable
    from cgtool.torch_compat.allocator import PoolSegment
    from cgtool.torch_compat.storages import StorageRef


class StorageLife:
    """The memory of a storage that graphs use."""

    def __init__(self, ref: StorageRef, gone: Callable[[str, Chain, int], None]) -> None:
        self._ref, self._gone = ref, gone
        self._freeing = ref.when_freed(self._freed)
        if self._freeing is None:
            self._freed()

    def _freed(self) -> None:
        self._gone("freed", chain_or_waiting(sys._getframe()), clock.time_ns())

    def look(self) -> None:
        if self._ref.expired():
            self._gone("freed", (), clock.time_ns())  # if that was not seen
        elif self._ref.is_moved():  # an op may have resized it: `aten::resize_`
            self._gone("resized", (), clock.time_ns())


class CudaRecordedDevice:
    """A GPU, for ``recorder.recorder``."""

    graph_class: Any = torch.cuda.CUDAGraph
    simulated = False

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._code = GeneratedCode(patches)

    @cached_property
    def _allocations(self) -> Allocations:
        from cgtool.devices.cuda.allocations import Allocations

        return Allocations()

    @cached_property
    def _captures(self) -> Captures:
        from cgtool.devices.cuda.recording import Captures

        return Captures(self._code, self._patches)

    def environment(self) -> Callable[[], Environment]:
        return partial(_environment, torch.cuda.current_device())

    def notes_ops_in_python(self) -> bool:
        from cgtool.torch_compat import op_key

        return op_key.is_supported() and self._captures.native is None

    def when_used(self, call: Callable[[], None]) -> None:
        # Without it, the first capture prepares.
        with contextlib.suppress(MissingPrivateName):
            when_initialized(call)

    def prepare(self) -> None:
        from cgtool.devices.cuda import environment  # noqa: F401
        from cgtool.devices.cuda.recording import LET_THROUGH
        from cgtool.torch_compat import op_key

        op_key.prepare(LET_THROUGH, op_watch.load())
        self._captures  # noqa: B018

    def watch(self, table: OriginTable, chain: Chain, *, compiled: bool) -> Any:
        return self._captures.watch(table, chain, compiled=compiled)

    def functions(self) -> tuple[Function, ...]:
        return tuple(self._captures.functions.functions)

    def reserved_bytes(self) -> int | None:
        native = op_watch.load()
        if native is not None:
            known: int | None = native.reserved_bytes()
            if known is not None:
                return known
        # torch.cuda.memory_reserved() makes a table of all figures: a fifth of a millisecond.
        statistics: Any = torch.cuda.memory_stats_as_nested_dict()
        return int(statistics["reserved_bytes"]["all"]["current"]) if statistics else 0

    def free_bytes(self) -> int | None:
        return self._captures.free_bytes()

    def stream(self) -> int | None:
        return current_raw_stream(torch.cuda.current_device())

    def follow(self, ref: StorageRef, gone: Callable[[str, Chain, int], None]) -> StorageLife:
        return StorageLife(ref, gone)

    def allocated_at(self, addresses: Set[int]) -> dict[int, tuple[Frame, ...]]:
        return self._allocations.lines(addresses)

    def digests(self, tensors: Sequence[torch.Tensor]) -> list[int | None]:
        from cgtool.devices.cuda.driver import relaxed
        from cgtool.devices.cuda.figures import digests

        if torch.cuda.is_current_stream_capturing():  # by other means than those that are followed
            return [None for _ in tensors]
        with relaxed():
            # The host must not wait for work that may itself wait for the host, or for other ranks.
            is_idle = torch.cuda.current_stream().query()
            return digests(tensors) if is_idle else [None for _ in tensors]

    def new_allocations(self, *, lines: bool = False) -> Sequence[Allocated]:
        # Nor in a forked process, where it cannot be.
        return self._allocations.new(lines=lines) if torch.cuda.is_initialized() else ()

    def pool_segments(self, pool: tuple[int, int]) -> list[PoolSegment]:
        from cgtool.torch_compat.allocator import pool_segments

        return pool_segments(pool)

    def step_graphs(self, patches: Patches) -> Callable[[Any], CudaSteppedGraph]:
        from cgtool.devices.cuda.steps import step_graphs

        return step_graphs(patches)

    def time_replays(
        self, journal: Callable[[], JournalWriter], say: Callable[[str], None], patches: Patches
    ) -> ReplayTimes:
        from cgtool.devices.cuda.replay_times import ReplayTimes

        return ReplayTimes(journal, say, patches)


def _environment(device: int) -> Environment:
    from cgtool.devices.cuda.driver import relaxed
    from cgtool.devices.cuda.environment import environment

    # Another thread may capture in mode `global`, which ends if this one asks too much.
    with relaxed():
        return environment(device)
