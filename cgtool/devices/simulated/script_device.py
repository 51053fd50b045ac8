"""The simulated device for a script that captures and replays graphs itself.

``cgtool capture`` ends at the first refused call. A script gets the exception that CUDA or PyTorch
raises, so that its ``try`` statements work; the finding is collected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from cgtool.detectors.capture_errors import (
    LAZY_LIBRARY_INIT,
    RNG_NEW_GENERATOR,
    RNG_STATE_ACCESS,
    RNG_UNREGISTERED_GENERATOR,
)
from cgtool.detectors.function_rules import (
    H2D_INDEX_WITH_LIST_OR_CPU_TENSOR,
    H2D_PAGEABLE_COPY,
    H2D_TENSOR_FROM_PYTHON,
    SYNC_D2H_COPY,
)
from cgtool.detectors.reporting import mark_reported
from cgtool.detectors.script.capture_misuse import OTHER_THREAD_CUDA_CALL, other_thread
from cgtool.detectors.streams import (
    ACCUMULATE_GRAD_DEFAULT_STREAM,
    DEFAULT_STREAM_DEPENDENCY,
    SIDE_STREAM_NOT_FORKED,
    UNFORKED,
    UNJOINED_SIDE_STREAM,
    WAIT_ON_PRECAPTURE_WORK,
)
from cgtool.devices.simulated.device_model import UNCOMPILED_NOTE, DeviceModel, Event, Stream
from cgtool.devices.simulated.libraries import Handles, in_backward, library_of
from cgtool.devices.simulated.memory import PoolBlock, PrivatePool
from cgtool.devices.simulated.owners import RecordedOwners
from cgtool.findings import code
from cgtool.model.finding import Finding
from cgtool.observe.script.script import OnCapturedOp, Undoing
from cgtool.observe.script.state import EXTERNAL
from cgtool.observe.tensors import place_of
from cgtool.torch_compat.dispatch_keys import Args
from cgtool.torch_compat.op_key import outer_ops
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import CAPTURING_QUERIES
from cgtool.torch_compat.storages import StorageRef

CAPTURED_EVENT_MISUSE = code("captured-event-misuse")

PoolId = tuple[int, int]

_COPY = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
    "pinned. Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
_GENERATOR = (
    "Cannot construct a new CUDAGeneratorImpl during CUDA graph capture. If you need this call to "
    "be captured, please file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatus"
    "Active"
)
# By code: errors that PyTorch raises before it calls CUDA. The capture stays valid.
_BY_PYTORCH = {
    SYNC_D2H_COPY: _COPY,
    H2D_PAGEABLE_COPY: _COPY,
    H2D_TENSOR_FROM_PYTHON: _COPY,
    H2D_INDEX_WITH_LIST_OR_CPU_TENSOR: _COPY,
    RNG_NEW_GENERATOR: _GENERATOR,
    RNG_UNREGISTERED_GENERATOR: "Attempt to increase offset for a CUDA generator not in capture "
    "mode.",
    RNG_STATE_ACCESS: "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture. If "
    "you need this call to be captured, please file an issue.",
}
_NO_HANDLE = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
_ENDED = "StreamCaptureInvalidated", "operation failed due to a previous error during capture"
_REFUSED = "StreamCaptureUnsupported", "operation not permitted when stream is capturing"
_IMPLICIT = (
    "StreamCaptureImplicit",
    "operation would make the legacy stream depend on a capturing blocking stream",
)
_BY_CUDA = {
    CAPTURED_EVENT_MISUSE: (
        "CapturedEvent",
        "operation not permitted on an event last recorded in a capturing stream",
    ),
    UNJOINED_SIDE_STREAM: ("StreamCaptureUnjoined", "capturing stream has unjoined work"),
    WAIT_ON_PRECAPTURE_WORK: (
        "StreamCaptureIsolation",
        "dependency created on uncaptured work in another stream",
    ),
    DEFAULT_STREAM_DEPENDENCY: _IMPLICIT,
    ACCUMULATE_GRAD_DEFAULT_STREAM: _IMPLICIT,
}


def cuda_error(name: str, sentence: str) -> RuntimeError:
    """The exception that PyTorch raises for a CUDA error."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = kind(
        f"CUDA error: {sentence}\nSearch for `cudaError{name}' in the documentation of the CUDA "
        "runtime for more information."
    )
    return error


def known(error: RuntimeError) -> RuntimeError:
    """Mark an error whose finding is already collected."""
    mark_reported(error)
    return error


class GraphMemory(RecordedOwners):
    """The storages of a script's captures: which of them the script still owns, and their
    addresses by the model of the caching allocator."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, tuple[StorageRef, PrivatePool, PoolBlock]] = {}
        """By key: where the storages of captures are, also after their end."""
        self._live: set[int] = set()

    def allocate(self, storage: StorageRef, pool: PrivatePool) -> None:
        if storage.key not in self._blocks and storage.bytes:
            self._blocks[storage.key] = storage, pool, pool.allocate(storage.bytes)
            self._live.add(storage.key)

    def address(self, storage: StorageRef) -> int:
        known = self._blocks.get(storage.key)
        return storage.address if known is None else known[2].address

    def sweep(self) -> None:
        """Free the storages that the script no longer owns."""
        for key in list(self._live):
            ref, pool, block = self._blocks[key]
            if self.is_dead(ref):
                pool.free(block)
                self._live.remove(key)


class ScriptDevice(DeviceModel):
    """Raises the errors of CUDA and collects their findings; the device of a script's observers
    (``observe.script.script.Device``)."""

    simulated = True
    graph_class: Any
    """``torch.cuda.CUDAGraph`` of this device."""
    is_running_again = False
    """While ``run_again`` runs, of which nothing stays."""

    def __init__(self) -> None:
        super().__init__()
        self.event_class = type("Event", (_ScriptEvent,), {"owner": self})
        self.recorder: Any = None
        """Recorder of the capture in progress."""
        self.ended_by: Finding | None = None
        """The finding that has ended the capture in progress: a call that CUDA refuses."""
        self.captured: OnCapturedOp = lambda *_: None
        """Called for every op of a capture."""
        self.handles: Handles | None = None
        """Handles of CUDA libraries, where it matters who creates them."""
        self.pools: dict[PoolId, PrivatePool] = {}
        self.memory: GraphMemory = GraphMemory()
        self.address = self.memory.address
        self.reserved: Callable[[int], object] = lambda _: None
        """Called with the bytes of each segment that a pool reserves."""

    def set_generator_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def synchronize(self) -> None:
        pass  # nothing runs later than its call

    def note_library(self, name: str, args: Args) -> None:
        handles = self.handles
        if handles is None:
            return
        if not self.capturing:
            handles.note_op(name)
        library = library_of(name, args)
        if library is None or handles.has(library):
            return
        if self.capturing and self.ended_by:
            # The op does not run.
            return
        # Of other modes, only the thread that captures is refused what it allocates.
        is_backward = in_backward()
        is_permitted = self.mode == "relaxed" or (
            self.mode == "thread_local" and (is_backward or self.in_other_thread)
        )
        is_made = any(map(handles.has_run, outer_ops()))
        if self.capturing and not (is_permitted or is_made):
            where = "in a backward" if is_backward else "in this thread"
            self.report(
                LAZY_LIBRARY_INIT,
                f"`{name.partition('.')[0]}` is the first op {where} that calls {library}, which "
                "creates its handle: that is not permitted when a stream is capturing",
                why="autograd runs a backward on a thread of its own, which has a handle of its own"
                if is_backward
                else "",
            )
        handles.create(library)

    def note_compiled(self) -> None:
        # Also outside captures: compiled code may be what would have captured graphs.
        self.uncompiled = (UNCOMPILED_NOTE,)

    def refuse_join(self) -> None:
        # It has a finding.
        self.ended_by = next(reversed(self.findings.all()))
        raise known(cuda_error(*_BY_CUDA[WAIT_ON_PRECAPTURE_WORK]))

    def report_left_out(self, reason: str, *, allocates: bool) -> None:
        if allocates:
            super().report_left_out(reason, allocates=allocates)
        else:
            finding = Finding(
                SIDE_STREAM_NOT_FORKED, reason, phase=self.phase, evidence=(UNFORKED,)
            )
            self.findings.add(self.placed(finding))

    def fail(self, finding: Finding, why: str) -> None:
        if self.in_other_thread:
            reason = other_thread(threading.current_thread().name)
            finding = replace(finding, code=OTHER_THREAD_CUDA_CALL, reason=reason, fix=None)
        self.findings.add(finding)
        sentence = _BY_PYTORCH.get(finding.code)
        if sentence is not None:
            raise known(RuntimeError(sentence))
        self.ended_by = self.ended_by or finding
        if finding.code == LAZY_LIBRARY_INIT:
            raise known(RuntimeError(_NO_HANDLE))
        raise known(cuda_error(*_BY_CUDA.get(finding.code, _REFUSED)))

    def close(self) -> None:
        """Restore what a capture replaces, if the script ended in one."""
        if self.recorder is not None:
            self.recorder.modules.__exit__(None, None, None)
        if self.capturing:
            self.end()

    def ended(self) -> RuntimeError:
        """The error of every call after a refused one, until the capture has ended."""
        return known(cuda_error(*_ENDED))

    def new_pool(self) -> PoolId:
        return self.add_pool(super().new_pool())

    def add_pool(self, pool: PoolId) -> PoolId:
        if pool not in self.pools:
            self.pools[pool] = PrivatePool(len(self.pools), self.reserved)
        return pool

    def ran_on_host(self, values: Any) -> bool:
        return self.on_host

    def place(self, tensor: torch.Tensor) -> str:
        return place_of(tensor)

    def pool_bytes(self, pool: PoolId) -> int:
        model = self.pools[pool]
        return sum(block.bytes for first in model.segments for block in model.blocks(first))

    def is_in_pool(self, address: int, pool: PoolId) -> bool:
        return False  # all memory is allocated by ops

    def reset_frees_workspaces(self) -> bool:
        return False

    def keeps_graph(self, graph: Any) -> bool:
        return bool(graph.keep_graph)

    def captured_nodes(self) -> int:
        return 0

    def run_again(self, run: Callable[[], None], recorder: Undoing) -> Callable[[], None]:
        """See ``observe.script.script.Device``: here eagerly, and undone."""
        self.recorder, before = recorder, self.recorder
        try:
            with Patches() as patches:
                for point in CAPTURING_QUERIES:
                    patches.set(*point, lambda: True)
                patches.set(self, "is_running_again", True)
                run()
        finally:
            self.recorder = before
            recorder.undo()
        return recorder.undo

    def stream(self) -> int:
        return int(self.current.cuda_stream)

    def stream_is_captured(self) -> bool:
        return self.current_is_capturing


class _ScriptEvent(Event):
    """Uses the host's clock."""

    owner: ScriptDevice

    _captured = False

    def record(self, stream: Stream | None = None) -> None:
        if self.owner.is_running_again:
            return
        super().record(stream)
        self._captured = (stream or self.owner.current).is_capturing() and not getattr(
            self, EXTERNAL
        )

    def _refuse_captured(self, call: str) -> None:
        if self._captured and not self.owner.capturing:
            self.owner.report(
                CAPTURED_EVENT_MISUSE,
                f"{call} of an event that was recorded in a capture, so it never completes",
                phase="script",
            )

    def synchronize(self) -> None:
        self._refuse_captured("synchronize()")
        super().synchronize()

    def query(self) -> bool:
        self._refuse_captured("query()")
        return super().query()

    def elapsed_time(self, end_event: Any) -> float:
        self._refuse_captured("elapsed_time()")
        return super().elapsed_time(end_event)
