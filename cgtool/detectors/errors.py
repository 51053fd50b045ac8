"""What an exception of a capture means: its code, its reason, and what to do.

PyTorch reports most failed captures with a sentence of CUDA's that names a rule, not the cause.
Which rule was broken by what shows in the words (``sentences``), in the frames that were running,
and in what else the process was doing.
"""

from __future__ import annotations

import re
import threading
import traceback
from pathlib import Path

import torch

from cgtool.detectors.sentences import (
    COPIES,
    COPY,
    REFUSED,
    RULES,
    SYNCS,
    UNPINNED,
    Raised,
    other_threads,
    pinning_thread,
)
from cgtool.detectors.syncs import library_code
from cgtool.findings.registry import code
from cgtool.model.finding import Code, Finding
from cgtool.observe.frames import package_part

DATALOADER_PIN_THREAD = code("dataloader-pin-thread")
FINALIZER_IN_CAPTURE = code("finalizer-in-capture")
H2D_PAGEABLE_COPY = code("h2d-pageable-copy")
OOM_DURING_CAPTURE = code("oom-during-capture")
OTHER_THREAD_CUDA_CALL = code("other-thread-cuda-call")
SYNC_ITEM = code("sync-item")


def _read(error: BaseException, phase: str) -> Raised:
    try:
        text = str(error)
    except Exception:  # a __str__ of the user's
        text = ""
    summary = traceback.extract_tb(error.__traceback__)
    return Raised(
        text,
        tuple(package_part(one.filename) or Path(one.filename).name for one in reversed(summary)),
        tuple(one.line or "" for one in reversed(summary)),
        "backward" in phase,
        type(error),
    )


def explain(error: BaseException, phase: str) -> Finding | None:
    """The finding behind an exception; without frames, which its owner knows.

    None when nothing in it speaks of a capture. ``phase`` is ``capture forward``, ``warm-up``, ...
    """
    raised = _read(error, phase)
    first = raised.text.strip().splitlines()[0] if raised.text.strip() else ""
    evidence = (f"{raised.kind.__name__}: {first}",)
    if isinstance(error, torch.OutOfMemoryError) and "capture" in phase:
        return Finding(
            OOM_DURING_CAPTURE,
            "the GPU ran out of memory during the capture, in which PyTorch can give no cached "
            "block back",
            phase=phase,
            evidence=evidence,
        )
    if not _by_pytorch(raised):
        return None
    warming = phase in _EAGER
    for rule in RULES:
        if warming and rule.code in _IN_CAPTURE:
            continue
        if re.search(rule.words, raised.text, re.IGNORECASE) and rule.when(raised):
            return Finding(rule.code, rule.reason, phase=phase, fix=rule.fix, evidence=evidence)
    if COPY in raised.text:
        copied = _by_line(COPIES, raised) or H2D_PAGEABLE_COPY
        return Finding(copied, UNPINNED, phase=phase, evidence=evidence)
    if REFUSED in raised.text:
        return _refused(raised, phase, evidence)
    if "previous error during capture" in raised.text:
        return _invalidated(raised, phase, evidence)
    return None


_DRIVERS = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
"""PyTorch before 2.8 raises RuntimeError for the driver's errors too."""
_EAGER = ("warm-up", "load")
_IN_CAPTURE = frozenset(
    (
        code("lazy-library-init"),
        code("cudnn-benchmark-in-capture"),
        code("first-compile-in-capture"),
        code("triton-autotune-in-capture"),
        code("input-freed-before-replay"),
        code("multi-device-capture"),
    )
)
"""Codes whose sentences mean something else while nothing is captured."""


def _by_pytorch(raised: Raised) -> bool:
    """False for an exception of the user's own words: raised in a file of the user's, by a type
    that the driver's errors do not have."""
    if issubclass(raised.kind, _DRIVERS):
        return True
    inner = raised.lines[0].strip() if raised.lines else ""
    is_users = bool(raised.files) and not raised.files[0].startswith("/")
    return not (is_users and inner.startswith("raise "))


def _by_line(table: tuple[tuple[Code, re.Pattern[str]], ...], raised: Raised) -> Code | None:
    by_library = library_code(raised.files)
    if by_library is not None:
        return by_library
    for line, name in zip(raised.lines, raised.files, strict=True):
        if name.startswith("/"):
            continue
        for line_code, pattern in table:
            if pattern.search(line):
                return line_code
        break
    return None


def _refused(raised: Raised, phase: str, evidence: tuple[str, ...]) -> Finding:
    return Finding(
        _by_line(SYNCS, raised) or SYNC_ITEM,
        "what this line does is not permitted when a stream is capturing (900, "
        "cudaErrorStreamCaptureUnsupported): most often the host waits for the device, or copies "
        "from memory that is not pinned",
        phase=phase,
        evidence=evidence,
    )


def _invalidated(raised: Raised, phase: str, evidence: tuple[str, ...]) -> Finding:
    """901 with no error before it: something outside the captured code ended the capture."""
    if pinning_thread(raised):
        return Finding(
            DATALOADER_PIN_THREAD,
            "the capture was ended from outside the captured code (901): a DataLoader with "
            "pin_memory=True has a thread that calls CUDA",
            phase=phase,
            fix='use capture_error_mode="thread_local", or make the loader after the capture',
            evidence=evidence,
        )
    if other_threads(raised):
        names = ", ".join(one.name for one in threading.enumerate()[1:6])
        return Finding(
            OTHER_THREAD_CUDA_CALL,
            "the capture was ended from outside the captured code (901): another thread called "
            f"CUDA; alive are {names}",
            phase=phase,
            fix='stop the thread while capturing, or use capture_error_mode="thread_local"',
            evidence=evidence,
        )
    return Finding(
        FINALIZER_IN_CAPTURE,
        "the capture was ended by a call whose own error was swallowed (901): most often the "
        "finalizer of an object that died meanwhile",
        phase=phase,
        fix="keep graphs, events and kernels alive until the capture is over, and call "
        "gc.collect() before it",
        evidence=evidence,
    )
