"""One more run of the user's code, of which nothing stays: what it writes to tensors is undone, it
prints nothing, and it ends before it writes a file, starts a process or connects to another."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import torch

from cgtool.model import clock
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import written_by
from cgtool.observe.frames import is_internal
from cgtool.observe.ops import OpCall
from cgtool.observe.raw_tensors import bytes_of, raw
from cgtool.observe.tensors import has_memory, is_emptied, on_host, tensors_in
from cgtool.recapture.iteration import Iteration
from cgtool.recapture.ops import KeptOpRecorder
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import storage_address

_MOST_BYTES = 4 << 30
"""Limit of the memory that a run overwrites, which is copied before."""
_MOST_OPS = 20
"""Times the ops of the run before: a loop whose length is a number that was set."""
_FEW_OPS = 1000
"""In addition to these."""
_AGAIN = 1.0
"""Seconds after which a run that goes on though its time is over is stopped again."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REACHES_OUT = frozenset(
    (
        *("os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg"),
        *("os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir"),
        *("os.spawn", "os.symlink", "os.system", "os.truncate", "os.utime", "socket.bind"),
        *("socket.connect", "socket.sendmsg", "socket.sendto", "sqlite3.connect"),
        *("subprocess.Popen", "signal.pthread_kill"),
    )
)
"""Audit events of CPython."""


_ENDS_PROCESS = (
    *((os, name) for name in ("_exit", "abort", "execv", "execve", "kill", "killpg")),
    *((signal, name) for name in ("raise_signal", "pthread_kill")),
)
"""Functions after which the process may be another, or gone."""


class Stopped(BaseException):
    """The run would reach out of the process, takes too long, or writes too much. Its text says in
    which of these it was stopped: the function that it called, or what it used up."""


@dataclass
class _Run:
    """One contained run."""

    end: float
    """When it has taken too long."""
    is_over = False
    is_restoring = False
    """It sets memory back, which it must not leave half done."""


class _OfThread(threading.local):
    run: _Run | None = None
    """The contained run that a thread belongs to."""

    @property
    def is_contained(self) -> bool:
        return self.run is not None and not self.run.is_over

    def check_time(self) -> None:
        """Threads other than the main one get no signal."""
        if self.run is not None and clock.monotonic() > self.run.end:
            raise Stopped("time")


_of_thread = _OfThread()


@cache
def _audited() -> None:
    """An audit hook stays until the process ends."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if not _of_thread.is_contained:
            return
        if event == "open":
            path, _, flags = arguments
            is_written = isinstance(flags, int) and flags & _WRITES and path != os.devnull
        else:
            is_written = event in _REACHES_OUT
        if is_written:
            raise Stopped(event)

    sys.addaudithook(refuse)


class _OfOthers(io.StringIO):
    """Takes the place of a standard stream; has what other threads write."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if _of_thread.is_contained else int(self._stream.write(text))


@contextlib.contextmanager
def contained(seconds: float) -> Iterator[None]:
    """Raises Stopped in what runs inside, once it reaches out or takes longer."""
    _audited()
    outer, _of_thread.run = _of_thread.run, _Run(clock.monotonic() + seconds)
    run = _of_thread.run
    try:
        with (
            contextlib.redirect_stdout(_OfOthers(sys.stdout)),
            contextlib.redirect_stderr(_OfOthers(sys.stderr)),
            Patches() as patches,
        ):
            patches.wrap(threading.Thread, "start", _start_contained)
            patches.wrap(logging.Logger, "callHandlers", _log)
            patches.wrap(torch, "save", _save_in_memory)
            for owner, name in _ENDS_PROCESS:
                patches.wrap(owner, name, _stay)
            with _limited(seconds):
                yield
    finally:
        run.is_over = True
        _of_thread.run = outer


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises Stopped in what runs inside, once it takes longer; a timer of the program goes on
    afterwards. Signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    run = _of_thread.run

    def expired(_signal: int, _frame: FrameType | None) -> None:
        if run is not None and not (run.is_over or run.is_restoring):
            raise Stopped("time")

    began, before = clock.monotonic(), signal.signal(signal.SIGALRM, expired)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        try:
            yield
        finally:
            # The timer may expire here, too.
            if run is not None:
                run.is_over = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        if left:
            left = max(left - (clock.monotonic() - began), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextlib.contextmanager
def restoring() -> Iterator[None]:
    """While entered, the contained run of this thread is not stopped: it is being undone."""
    run = _of_thread.run
    if run is None or run.is_restoring:
        yield
        return
    run.is_restoring = True
    try:
        yield
    finally:
        run.is_restoring = False


def _start_contained(start: Any, thread: threading.Thread) -> None:
    """A thread that a contained run starts belongs to it."""
    of_run, run = _of_thread.run, thread.run
    if _of_thread.is_contained:

        def run_contained() -> None:
            _of_thread.run = of_run
            run()

        thread.run = run_contained  # type: ignore[method-assign]
    start(thread)


def _log(call_handlers: Any, *arguments: Any) -> None:
    """Handlers have files and streams that are open."""
    if not _of_thread.is_contained:
        call_handlers(*arguments)


def _save_in_memory(save: Any, obj: Any, f: Any, *arguments: Any, **options: Any) -> None:
    """PyTorch opens files in C++, without an audit event."""
    if _of_thread.is_contained and isinstance(f, str | os.PathLike):
        raise Stopped("torch.save")
    save(obj, f, *arguments, **options)


def _stay(leave: Any, *arguments: Any) -> None:
    """The process does not end with a contained run."""
    if _of_thread.is_contained:
        raise Stopped(leave.__name__)
    leave(*arguments)


def most_ops_after(iteration: Iteration) -> int:
    """How many ops a run may have that follows this one."""
    return _FEW_OPS + _MOST_OPS * len(iteration.ops)


class UndoingRecorder(KeptOpRecorder):
    """Keeps what the ops of a run overwrite; may give them other random numbers."""

    def __init__(self, roots: Any, annotations: Annotations, inputs: set[int]) -> None:
        super().__init__(roots, annotations, inputs)
        self.most_ops = sys.maxsize
        self.draws: float | None = None
        """The result of random ops on the host: the lowest or the highest number."""
        self.copies_device = True
        """Whether memory of the device is copied before it is overwritten: a capture writes
        none."""
        self._saved: dict[int, tuple[torch.Tensor, torch.UntypedStorage | None]] = {}
        self._bytes = 0

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if len(self.ops) > self.most_ops:
            raise Stopped("ops")
        _of_thread.check_time()
        for tensor in written_by(func, args, kwargs):
            self._save(tensor)
        result = super().execute(call, func, args, kwargs)
        is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        if self.draws is not None and is_random:
            for tensor in tensors_in(result):
                if on_host(tensor) and tensor.is_floating_point():
                    with raw():
                        tensor.fill_(self.draws)
        return result

    def _save(self, tensor: torch.Tensor) -> None:
        if not has_memory(tensor) or is_emptied(tensor):
            return
        key = storage_address(tensor)
        if key in self._saved or self.has_made(key):
            return
        if not (self.copies_device or on_host(tensor)):
            self._saved[key] = tensor, None
            return
        self._bytes += tensor.untyped_storage().nbytes()
        if self._bytes > _MOST_BYTES:
            raise Stopped("memory")
        with raw():
            self._saved[key] = tensor, bytes_of(tensor)

    @property
    def overwritten(self) -> list[torch.Tensor]:
        """A tensor in each storage of before that the run has written to."""
        return [tensor for tensor, _ in self._saved.values()]

    def undo(self) -> None:
        """Write back what was overwritten; once more, and it is as the run has left it."""
        with restoring(), raw():
            for key, (tensor, values) in self._saved.items():
                if values is not None and tensor.untyped_storage().nbytes() == values.nbytes():
                    self._saved[key] = tensor, bytes_of(tensor)
                    tensor.untyped_storage().copy_(values)


_CLOCKS = ("time", "monotonic", "perf_counter", "process_time")


def times_now() -> dict[str, float]:
    """The time that each of these functions returns, by name."""
    return {name: getattr(time, name)() for name in _CLOCKS}


class Clock:
    """The functions of ``time``, as a run sees them: each call is a millisecond later than the one
    before, so that two runs read the same times."""

    def __init__(
        self, patches: Patches, days: float, now: Mapping[str, float] | None = None
    ) -> None:
        """``now``: the ``times_now`` of all runs that are compared."""
        now = times_now() if now is None else now
        self.reads = 0
        """How often the user's code has read one of them."""
        for name in _CLOCKS:
            start = now[name] + days * 86_400
            patches.set(time, name, self._reading(start, 1e-3))
            patches.set(time, f"{name}_ns", self._reading(int(start * 1e9), 1_000_000))
        local = time.localtime

        def read_local(at: float | None = None) -> time.struct_time:
            self._note_reader(sys._getframe(1))
            return local(time.time() if at is None else at)

        patches.set(time, "localtime", read_local)

    def _note_reader(self, frame: FrameType) -> None:
        self.reads += not is_internal(frame.f_code)

    def _reading(self, start: Any, step: Any) -> Callable[[], Any]:
        calls = iter(range(sys.maxsize))

        def read() -> Any:
            self._note_reader(sys._getframe(1))
            return start + next(calls) * step

        return read
