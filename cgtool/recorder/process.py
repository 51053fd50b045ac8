"""Records one process: of ``cgtool run`` from the import of PyTorch to its end, or for a block."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from cgtool.model import clock
from cgtool.model.journal import JournalWriter
from cgtool.model.program import Settings
from cgtool.model.records import Began, Lost
from cgtool.recorder.capture_failure import error_text
from cgtool.recorder.recorded_device import RecordedDevice
from cgtool.recorder.recorder import Recorder
from cgtool.torch_compat.patches import Patches


class _Process:
    """This process: only one recorder at a time follows its graphs."""

    def __init__(self) -> None:
        self.claimed = threading.Lock()
        """Held while the process is recorded."""
        self.recorder: Recorder | None = None
        self._simulated = False
        self._forking = contextlib.ExitStack()
        os.register_at_fork(
            before=self._forks,
            after_in_parent=self._forking.close,
            after_in_child=self._forked,
        )

    def start(self, folder: Path, device: RecordedDevice, patches: Patches) -> Recorder:
        self.recorder = Recorder(device, JournalWriter(folder, _journal_name()), patches)
        self._simulated = device.simulated
        self.recorder.journal.append(_began(forked=False, simulated=device.simulated))
        return self.recorder

    def _forks(self) -> None:
        if self.recorder is not None:
            self._forking.enter_context(self.recorder.forkable)

    def _forked(self) -> None:
        self._forking.close()
        if self.recorder is not None:
            self.recorder.forked(_journal_name())
            self.recorder.journal.append(_began(forked=True, simulated=self._simulated))


_process = _Process()


def record(settings: Settings) -> None:
    """Follow the graphs of this process, and of those that it forks, to its end."""
    _process.claimed.acquire()
    patches = Patches()  # never undone: the process is the program's
    device = _device(settings.device, patches)
    recorder = _process.start(Path(settings.folder), device, patches)
    if device.simulated and threading.current_thread() is not threading.main_thread():
        from cgtool.devices.simulated.placement import place_main_thread

        place_main_thread()
    if settings.times:
        recorder.time_replays()
    if settings.step:
        recorder.step_replays()
    if settings.ready_after:
        recorder.mark_ready(int(settings.ready_after))
    if settings.watchdog:
        recorder.watch_for_hangs(Path(settings.folder))
    atexit.register(lambda: recorder.finish(_error()))


@contextlib.contextmanager
def claimed() -> Iterator[bool]:
    """Whether nothing else records this process, and nothing else will before the end."""
    is_free = _process.claimed.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _process.claimed.release()


@contextlib.contextmanager
def recorded(folder: Path, device: str) -> Iterator[None]:
    """Follow the graphs of this process, and of those that it forks, while entered. The
    caller has ``claimed`` it."""
    if not device and not has_gpu():
        journal = JournalWriter(folder, _journal_name())
        journal.append(
            _began(forked=False, simulated=False),
            Lost("nothing is recorded: PyTorch sees no usable GPU"),
        )
        yield
        return
    with Patches() as patches:
        recorder = _process.start(folder, _device(device, patches), patches)
        try:
            yield
        finally:
            _process.recorder = None
            # While the device is still there, which the simulated one is not afterwards.
            recorder.stop()


def _error() -> str:
    """The exception that ends the process."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return ""
    with contextlib.suppress(Exception):  # methods of the program's exception may raise
        return error_text(error)
    return type(error).__name__


def _journal_name() -> str:
    return f"{os.getpid()}-{clock.time_ns()}"


def _began(*, forked: bool, simulated: bool) -> Began:
    command = tuple(sys.orig_argv)
    # As torchrun and its like set them.
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    ranks = (int(rank), int(size)) if rank.isdecimal() and size.isdecimal() else (None, None)
    return Began(clock.time_ns(), os.getpid(), os.getppid(), command, forked, simulated, *ranks)


def _device(name: str, patches: Patches) -> RecordedDevice:
    if name != "simulated" and has_gpu():
        from cgtool.devices.cuda.recorded_device import CudaRecordedDevice

        return CudaRecordedDevice(patches)
    from cgtool.devices.simulated.recorded_device import SimulatedRecordedDevice

    because = "--device simulated" if name else "PyTorch sees no usable GPU"
    return SimulatedRecordedDevice(patches, because)


def has_gpu() -> bool:
    """Whether there may be a GPU, found out without initializing CUDA: the program may fork."""
    from cgtool.torch_compat.private import visible_gpus

    if torch.version.cuda is None:
        return False
    count = visible_gpus()
    # NVML does not answer for the parts of a GPU (MIG), nor where it is not installed.
    return count > 0 or (count < 0 and Path("/dev/nvidiactl").exists())
