"""Records one process of the program, from the import of PyTorch to its end."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path

import torch

from cgtool.model.part_files import Began, PartWriter
from cgtool.model.program import Settings
from cgtool.recording.recorder import RecordedDevice, Recorder
from cgtool.torch_compat.patches import Patches

_patches = Patches()
"""Never undone: the process is the program's."""


def record(settings: Settings) -> None:
    """Follow the graphs of this process, and of those that it forks."""
    device = _device(settings.device)
    folder = Path(settings.folder)
    recorder = Recorder(device, _part(folder), _patches)
    _begin(recorder, forked=False)
    atexit.register(recorder.finish)
    os.register_at_fork(after_in_child=lambda: _forked(recorder, folder))


def _part(folder: Path) -> PartWriter:
    return PartWriter(folder, f"{os.getpid()}-{time.time_ns()}")


def _forked(recorder: Recorder, folder: Path) -> None:
    recorder.forked(_part(folder))
    _begin(recorder, forked=True)


def _begin(recorder: Recorder, *, forked: bool) -> None:
    recorder.write(
        Began(
            time.time_ns(),
            os.getpid(),
            os.getppid(),
            tuple(sys.orig_argv),
            forked,
        )
    )


def _device(name: str) -> RecordedDevice:
    """The GPU if there is one, without initialising CUDA: the program may fork first."""
    if name != "simulated" and torch.version.cuda is not None and _may_have_a_gpu():
        from cgtool.devices.cuda.recording import CudaRecording

        return CudaRecording()
    from cgtool.devices.simulated.recording import SimulatedRecording

    because = "--device simulated" if name else "PyTorch sees no usable GPU"
    return SimulatedRecording(_patches, because)


def _may_have_a_gpu() -> bool:
    from cgtool.torch_compat.private import visible_gpus

    count = visible_gpus()
    # NVML does not answer for the parts of a GPU (MIG), nor where it is not installed.
    return count > 0 or (count < 0 and Path("/dev/nvidiactl").exists())
