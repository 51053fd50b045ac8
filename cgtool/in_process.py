"""``cgtool.capture`` and ``cgtool.verify``: of a function that is at hand, in this process, on the
device of its tensors; or of an ENTRY, in a process of its own.

A worker process is thrown away after its job. Here what the job changes is set back: the state that
the function reaches, by the snapshot of ``verify``; PyTorch, by the patches of each device. A
capture that fails on a GPU leaves its context as PyTorch leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cgtool import api
from cgtool.model import jobs
from cgtool.model.failure import CgtoolError, usage


def capture(function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> api.LoadedCapture:
    """Capture ``function(*args, **kwargs)``, forward and backward, as ``cgtool capture`` does.

    Tensors on a GPU are captured there, tensors on the CPU on the simulated device. What warm-up
    and capture change in the state that the function reaches is set back. Given an ENTRY
    (``"model.py:build"``), it runs in a separate process, and ``kwargs`` are the options of
    ``cgtool.check``. Raises CgtoolError if it cannot be captured, TypeError if ``function`` is
    neither.
    """
    if isinstance(function, str):
        return api.capture_entry(_entry(function, args), kwargs)
    job = jobs.CaptureJob(_name(function))
    captured = _run(job, function, args, kwargs).captured
    return api.LoadedCapture(Path(job.spec), *captured)


def verify(function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> api.VerifyResult:
    """Compare replays of ``function(*args, **kwargs)`` with eager, as ``cgtool verify`` does, on
    the device and under the conditions of ``capture``. For an ENTRY, ``replays`` and ``trials``
    are options too.

    Raises CgtoolError if it cannot be captured, TypeError if ``function`` is neither.
    """
    if isinstance(function, str):
        return api.verify_entry(_entry(function, args), kwargs)
    report = _run(jobs.VerifyJob(_name(function)), function, args, kwargs).report
    assert report is not None
    return api.VerifyResult(report)


def _name(function: object) -> str:
    """The name of a function, as that of a file. Raises TypeError for what cannot be called."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f"a function, a module or an ENTRY (file.py:name) is expected, not {kind}")
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _entry(spec: str, args: tuple[Any, ...]) -> str:
    if args:
        raise TypeError("an ENTRY takes no arguments: its factory returns them")
    return spec


def _run(job: jobs.CaptureJob | jobs.VerifyJob, *function: Any) -> Any:
    """The ``JobResult``. Here, because PyTorch is slow to import."""
    import torch  # noqa: F401 - and alone, because `cgtool run` waits for it to import what follows

    from cgtool.jobs.at_hand import run
    from cgtool.recorder.process import claimed

    with claimed() as is_free:
        if not is_free:
            raise usage(
                "this process is being recorded, so it cannot capture a function itself",
                fix="call it outside `cgtool run` and outside the block of cgtool.recording",
            )
        try:
            return run(job, *function)
        except CgtoolError as error:
            # Without cgtool's own frames, but with the exception of the user's code.
            raise error.with_traceback(None) from error.__cause__
