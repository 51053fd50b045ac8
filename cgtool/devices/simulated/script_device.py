"""The simulated device for a script that captures and replays graphs itself.

``cgtool capture`` ends at the first refused call. A script gets the exception that CUDA or PyTorch
raises, so that its ``try`` statements work; the finding is collected.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from cgtool.detectors.capture_errors import (
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
from cgtool.detectors.script.detector import mark_reported
from cgtool.detectors.streams import (
    DEFAULT_STREAM_DEPENDENCY,
    UNJOINED_SIDE_STREAM,
    WAIT_ON_PRECAPTURE_WORK,
)
from cgtool.devices.simulated.device_model import DeviceModel, Event, Stream
from cgtool.devices.simulated.memory import PrivatePool
from cgtool.findings.registry import code
from cgtool.model.finding import Finding
from cgtool.observe.ops import OpRecorder
from cgtool.observe.script.script import OnCapturedOp

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
_ENDED = (
    901,
    "StreamCaptureInvalidated",
    "operation failed due to a previous error during capture",
)
_REFUSED = (900, "StreamCaptureUnsupported", "operation not permitted when stream is capturing")
_BY_CUDA = {
    CAPTURED_EVENT_MISUSE: (
        907,
        "CapturedEvent",
        "operation not permitted on an event last recorded in a capturing stream",
    ),
    UNJOINED_SIDE_STREAM: (
        904,
        "StreamCaptureUnjoined",
        "capturing stream has unjoined work",
    ),
    WAIT_ON_PRECAPTURE_WORK: (
        905,
        "StreamCaptureIsolation",
        "dependency created on uncaptured work in another stream",
    ),
    DEFAULT_STREAM_DEPENDENCY: (
        906,
        "StreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
}


def cuda_error(code: tuple[int, str, str]) -> RuntimeError:
    """The exception that PyTorch raises for a CUDA error."""
    _, name, sentence = code
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = kind(
        f"CUDA error: {sentence}\nSearch for `cudaError{name}' in the documentation of the CUDA "
        "runtime for more information."
    )
    return error


def known(error: RuntimeError) -> RuntimeError:
    """Mark an error whose finding is collected already."""
    mark_reported(error)
    return error


class ScriptDevice(DeviceModel):
    """Raises the errors of CUDA and collects their findings."""

    def __init__(self) -> None:
        super().__init__()
        self.stream_class = type("Stream", (_ScriptStream,), {"owner": self})
        self.event_class = type("Event", (_ScriptEvent,), {"device": self})
        self.default = self.current = self.stream_class(name="default stream")
        self.default.cuda_stream = self.default.stream_id = 0
        self.recorder: OpRecorder | None = None
        """Of the capture in progress."""
        self.invalid = False
        """A call that CUDA refused has ended the capture in progress."""
        self.captured: OnCapturedOp = lambda *_: None
        """Called with every op of a capture."""
        self.pools: dict[PoolId, PrivatePool] = {}

    def fail(self, finding: Finding, why: str) -> None:
        self.findings.add(finding)
        sentence = _BY_PYTORCH.get(finding.code)
        if sentence is not None:
            raise known(RuntimeError(sentence))
        self.invalid = True
        raise known(cuda_error(_BY_CUDA.get(finding.code, _REFUSED)))

    def ended(self) -> RuntimeError:
        """The error of every call after a refused one, until the capture has ended."""
        return known(cuda_error(_ENDED))

    def new_pool(self) -> PoolId:
        pool = (0, len(self.pools) + 1)
        self.pools[pool] = PrivatePool(0x10_0000_0000 * len(self.pools) + 0x10_0000_0000)
        return pool


class _ScriptStream(Stream):
    """Can be entered more than once, as PyTorch's can."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entered: list[Stream] = []

    def __enter__(self) -> Stream:
        self._entered.append(self.owner.current)
        self.owner.current = self
        return self

    def __exit__(self, *_exc: Any) -> None:
        self.owner.current = self._entered.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return self.number


class _ScriptEvent(Event):
    """Uses the clock of the host."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._external = bool(kwargs.get("external"))
        self._captured = False
        self.recorded_ns = 0

    def record(self, stream: Stream | None = None) -> None:
        super().record(stream)
        self._captured = (stream or self.device.current).is_capturing() and not self._external
        self.recorded_ns = time.perf_counter_ns()

    def _refuse_captured(self, what: str) -> None:
        if self._captured and not self.device.capturing:
            self.device.report(
                CAPTURED_EVENT_MISUSE,
                f"{what} of an event that was recorded in a capture, so it never completes",
                phase="script",
            )

    def synchronize(self) -> None:
        self._refuse_captured("synchronize()")
        super().synchronize()

    def query(self) -> bool:
        self._refuse_captured("query()")
        return super().query()

    def elapsed_time(self, end: Any) -> float:
        self._refuse_captured("elapsed_time()")
        if not (self.recorded and end.recorded):
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        elapsed: int = end.recorded_ns - self.recorded_ns
        return elapsed / 1e6
