"""The worker process: the only one that imports torch and runs the user's code.

A process does one job: a failed capture leaves streams, pools and random states unusable.
``python -m cgtool.worker.child FD STACK_FILE`` reads a Request from standard input and answers on
the file descriptor; with a third argument ``ahead`` it imports torch first.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from os import _exit as _leave
from os import getpid as _getpid
from os import write as _write
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from cgtool.model.failure import EXIT_USER_CODE, CgtoolError, Failure, user_code
from cgtool.model.jobs import AHEAD, CHANNEL_LOST, READY, Answer, Message, Question, Request
from cgtool.worker import user_process

_PR_SET_PDEATHSIG = 1
_NEEDED_BY_ALL = (
    "torch", "torch.autograd", "torch.cuda", "torch.Tensor", "torch.nn.Module",
    "torch.nn.modules.module", "torch.autograd.Function",
)  # fmt: skip
"""Modules and classes whose attributes the user's code must not replace; and pytree."""
_AHEAD = (
    "torch",
    "cgtool.jobs.dispatch",
    "cgtool.devices.cuda.bench",
    "torch.fx.experimental.symbolic_shapes",
)
"""Modules that every run imports in the end; ``torch.autograd.grad`` last, and with it sympy."""
_MUST_BE_REAL = sys.stdlib_module_names - {"test"} | {"torch", "numpy"}
"""Modules that the user's files must not replace in a worker; nothing imports ``test``."""


def main() -> None:
    with contextlib.suppress(OSError, AttributeError):
        # If the parent process is killed, this one ends too.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel(int(sys.argv[1]))
    # PyTorch warns at every import if numpy is not installed. No capture needs it.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    # And at the first backward that begins with a matrix product, as it does without a loss.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no", UserWarning)
    # This process ends without exit handlers: multiprocessing's tracker, a process that it starts,
    # removes semaphores that are left, and would call them leaked.
    before = os.environ.get("PYTHONWARNINGS")
    filters = [*filter(None, [before]), "ignore:resource_tracker:UserWarning"]
    os.environ["PYTHONWARNINGS"] = ",".join(filters)
    originals = user_process.prepare(
        sys.argv[2], lambda ending: channel.send(Message(ending=ending))
    )
    if AHEAD in sys.argv[3:]:
        for name in _AHEAD:
            # What fails here fails again when there is a request to answer.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        channel.send(Message(phase=READY))
    requests = os.fdopen(os.dup(0), "rb")
    request = requests.readline()
    if not request:
        # This worker is not needed.
        _leave(0)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    code, answer = 0, Message(done=True)
    try:
        _do(msgspec.json.decode(request, type=Request), channel, originals, requests)
    except BaseException as error:  # whatever the user's code raises must be answered
        code = 1
        failure = _failure_of(error, originals.restore())
        bug = "".join(traceback.format_exception(error)) if failure is None else None
        answer = Message(failure=failure, bug=bug)
    # Before the answer: the supervisor ends a worker that has answered.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's code may have replaced them
            stream.flush()
    channel.send(answer)
    # Without waiting for threads that never end, or for finalizers of half-freed graphs.
    _leave(code)


class Channel:
    """The pipe to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = _getpid()
        self._lock = threading.RLock()

    def send(self, message: Message) -> None:
        """Write one line. Ends the process when nobody can read it."""
        if _getpid() != self._process:
            # A process that the user's code forked has returned here; it has no answer to give.
            _leave(0)
        try:
            line = msgspec.json.encode(message) + b"\n"
        except UnicodeEncodeError:
            # Lone surrogates, which JSON cannot hold, become question marks.
            text = json.dumps(msgspec.to_builtins(message), ensure_ascii=False)
            line = text.encode(errors="replace") + b"\n"
        try:
            with self._lock:
                while line:
                    line = line[_write(self._descriptor, line) :]
        except OSError:
            _leave(CHANNEL_LOST)


def extend_import_path(folders: Sequence[str]) -> None:
    """Search these folders too, before the installed packages, as the parent process does. A
    folder with a ``random.py`` is searched last, after Python's own modules."""

    def shadows(folder: str) -> bool:
        names: set[str] = set()
        with contextlib.suppress(OSError):
            names |= {file.name.partition(".")[0] for file in Path(folder).glob("*.py")}
            names |= {file.parent.name for file in Path(folder).glob("*/__init__.py")}
        return not names.isdisjoint(_MUST_BE_REAL)

    new = [folder for folder in folders if folder not in sys.path]
    last = [folder for folder in new if shadows(folder)]
    sys.path[:0] = [folder for folder in new if folder not in last]
    sys.path += last


def _do(
    request: Request,
    channel: Channel,
    originals: user_process.Originals,
    requests: BinaryIO,
) -> None:
    def progress(phase: str) -> None:
        channel.send(Message(phase=phase))

    def talk(answer: Answer) -> Question | None:
        channel.send(Message(answer=answer))
        line = requests.readline()
        return msgspec.json.decode(line, type=Question) if line else None

    extend_import_path(request.path)
    progress("import torch")
    from cgtool.jobs import dispatch
    from cgtool.torch_compat.private import PYTREE_MODULE

    originals.keep(*_NEEDED_BY_ALL, PYTREE_MODULE)
    # Jobs collect garbage again and again: not through all of PyTorch, a tenth of a second each.
    gc.freeze()
    dispatch.run(request, progress, talk)


def _failure_of(error: BaseException, replaced: list[user_process.Replaced]) -> Failure | None:
    """The failure of the user's code behind an exception; None for a bug."""
    from cgtool.observe.frames import exception_frames
    from cgtool.program.boundary import own_fault, unreadable

    if isinstance(error, CgtoolError):
        return _with_replaced(error.failure, replaced)
    frames = exception_frames(error)
    message = _sentence(error)
    if isinstance(error, MemoryError):
        return user_code("the host ran out of memory", frames=frames).failure
    if not own_fault(error):
        return _with_replaced(user_code(message, frames=frames).failure, replaced)
    if replaced:
        return user_code(
            f"the code under test replaced {user_process.describe_replaced(replaced)}",
            frames=user_process.frames_of_replaced(replaced),
            why=f"cgtool and PyTorch use it, and failed with {message}",
            fix="restore it before the entry point returns",
        ).failure
    if kind := unreadable(error):
        cause = f"cgtool cannot read the storage of {kind}"
        return user_code(cause, frames=frames, why=message).failure
    return None


def _sentence(error: BaseException) -> str:
    from cgtool.program.objects import short, text_of

    if isinstance(error, SystemExit):
        return f"the code under test called sys.exit({short(error.code)})"
    lines = text_of(error).strip().splitlines()
    message = type(error).__name__ + (f": {lines[0]}" if lines else "")
    return message if isinstance(error, Exception) else f"the code under test raised {message}"


def _with_replaced(failure: Failure, replaced: list[user_process.Replaced]) -> Failure:
    """With the names that the user's code broke, where nothing else explains the failure."""
    broken = [each for each in replaced if each.is_broken]
    if not broken or failure.why is not None or failure.exit_code != EXIT_USER_CODE:
        return failure
    return replace(
        failure,
        frames=failure.frames or user_process.frames_of_replaced(broken),
        why=f"the code under test replaced {user_process.describe_replaced(broken)}",
    )


if __name__ == "__main__":
    main()
