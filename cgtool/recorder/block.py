"""``cgtool.recording``: the graphs that this process captures in a block of code."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from cgtool.model import clock
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import free_name, is_dir, path_of, version_of
from cgtool.model.journal import Command, new_folder

_BLOCK = 3
"""Levels from here to the ``with`` statement, for warnings: through contextlib."""

_warned: list[str] = []
"""Warnings that are given once."""


class Recording:
    """The recording of a block."""

    path: Path | None = None
    """The file, once it is written; None if the block adds nothing to another recording."""
    sentence = ""
    """The first sentence of the ledger: ``6 graphs, 249 replays``; empty until there is a file."""
    _state = "not finished"

    def __repr__(self) -> str:
        return f"<recording {self.path or 'without a file'}: {self.sentence or self._state}>"


@contextlib.contextmanager
def recording(
    path: str | os.PathLike[str] = "run.cgt", *, device: Literal["simulated"] | None = None
) -> Iterator[Recording]:
    """Record every CUDA graph that this process captures in a ``with`` block, and write them to
    ``path`` at its end, even if the block raises::

        with cgtool.recording("run.cgt"):
            engine.generate(prompts)

    All threads are recorded, and the processes that the block forks. For graphs that were captured
    before, only the replays are known. ``cgtool run run.cgt`` shows the file. If the process is
    already recorded, by ``cgtool run`` or by another block, this one records nothing and warns.

    ``device="simulated"`` installs the simulated device while the block runs.
    Without it, a process that has no GPU records nothing. Raises CgtoolError if ``path`` cannot be
    written; what was recorded is then kept in a folder next to it.
    """
    target = path_of(path, "recording() takes the path of a file").absolute()
    # Here, because it is slow; and alone, because `cgtool run` waits for it to import what follows.
    import torch  # noqa: F401

    from cgtool.recorder.process import claimed, has_gpu, recorded

    if device not in (None, "simulated"):
        raise usage(f"device {device!r} is not 'simulated'", fix="leave out device= for a GPU")
    result = Recording()
    with claimed() as is_free:
        if not is_free:
            if not _warned:  # Python warns again after a filter has changed
                _warned.append(
                    "cgtool.recording adds nothing: this process is already recorded, by "
                    "`cgtool run` or by another block"
                )
                warnings.warn(_warned[0], stacklevel=_BLOCK)
            result._state = "adds nothing to the one in progress"
            yield result
            return
        if device is None and not has_gpu():
            warnings.warn(
                "cgtool.recording records nothing: PyTorch sees no usable GPU "
                '(device="simulated" runs the block without one)',
                stacklevel=_BLOCK,
            )
        before = version_of(target)
        command = Command(tuple(sys.orig_argv), clock.time_ns())
        folder = new_folder(target, command)
        pid, began, status = os.getpid(), clock.perf_counter_ns(), 1
        try:
            with recorded(folder, device or ""):
                yield result
            status = 0
        finally:
            if os.getpid() == pid:  # one that was forked in the block leaves it to its parent
                wall_ns = clock.perf_counter_ns() - began
                if version_of(target) != before:
                    target = free_name(target)
                _write(result, target, folder, command, wall_ns, status)


def _write(
    result: Recording, target: Path, folder: Path, command: Command, wall_ns: int, status: int
) -> None:
    left = f"what was recorded is kept: cgtool run {shlex.quote(str(folder))} -o FILE"
    if sys.is_finalizing():  # Python imports nothing anymore
        sys.stderr.write(f"cgtool.recording: Python ended before the block did; {left}\n")
        return
    # Slow to import, and nothing of it is needed before the end.
    from cgtool.analysis.ledger import merge_folder
    from cgtool.analysis.ledger_report import sentence_of
    from cgtool.model import capture_file
    from cgtool.model.capture import created_now
    from cgtool.model.sources import with_sources

    capture = merge_folder(command, folder, wall_ns=wall_ns, status=status, created=created_now())
    try:
        capture_file.write(target, with_sources(capture))
    except CgtoolError as error:
        message = error.failure.message
        hint = f"{message}; {left}" if is_dir(folder) else message
        if status == 0:
            error.add_note(hint)
            raise
        warnings.warn(hint, stacklevel=_BLOCK + 1)
        return
    if capture.ledger is not None:
        result.path, result.sentence = target, sentence_of(capture.ledger)
    shutil.rmtree(folder, ignore_errors=True)
