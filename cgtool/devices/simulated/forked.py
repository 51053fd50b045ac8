"""A forked process that tries something, and of which the program notices nothing.

It is not a child of the program, which may wait for its own. Nothing that it does is seen outside
it: the descriptors that it inherits lead nowhere, shared memory is its own copy, and it ends before
it opens a file to write, starts a process or connects to another.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import selectors
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cgtool.model import clock
from cgtool.observe.frames import package_part

strict = False
"""Whether a failure of cgtool's own code in such a process is raised, as in tests."""
_FAILED = b"\0failed"
_MOST_SHARED = 1 << 30
"""Bytes of shared memory that are copied."""
_MOST_IDLE = 2.0
"""Seconds: one that sleeps longer waits for a lock that a thread of the program had."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REACHES_OUT = (
    *("os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg"),
    *("os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.spawn"),
    *("os.symlink", "os.system", "os.truncate", "os.utime", "signal.pthread_kill"),
    *("socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto", "sqlite3.connect"),
    *("subprocess.Popen",),
)
"""Audit events of CPython."""


class ForkedProcess:
    """Runs a function, and keeps the bytes that it returns."""

    def __init__(self, function: Callable[[], bytes], seconds: float) -> None:
        self._pipe, writing = os.pipe()
        with _children_unnoticed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it takes none of the locks of other threads
            process = os.fork()
            if process == 0:
                with contextlib.suppress(BaseException):
                    if os.fork() == 0:
                        _answer(writing, function, seconds)
                os._exit(0)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
        os.close(writing)
        self._process = int.from_bytes(os.read(self._pipe, 8), "big")
        """0 if it could not be started."""

    def answer(self, seconds: float) -> bytes:
        """What it returned; nothing if it takes longer or waits in vain, and is ended."""
        answer, now = b"", clock.monotonic()
        limit, since, before = now + seconds, now, 0
        with selectors.DefaultSelector() as selector, os.fdopen(self._pipe, "rb", 0) as file:
            selector.register(file, selectors.EVENT_READ)
            while (now := clock.monotonic()) < limit and now - since < _MOST_IDLE:
                if selector.select(min(0.2, limit - now)):
                    part = file.read(1 << 16)
                    if not part:
                        return _without_failure(answer)
                    answer += part
                work = _work_of(self._process)
                if work is None or work > before:
                    since, before = clock.monotonic(), work or before
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
        return b""


def _without_failure(answer: bytes) -> bytes:
    if not answer.startswith(_FAILED):
        return answer
    if text := answer.removeprefix(_FAILED).decode():
        raise AssertionError(f"a forked process has failed:\n{text}")
    return b""


def _work_of(process: int) -> int | None:
    """Processor time of a process that sleeps; None if it does not, or nobody knows."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *rest = text.rpartition(")")[2].split()
    return int(rest[10]) + int(rest[11]) if state == "S" else None


def can_fork() -> bool:
    """Whether the program would not notice: a thread cannot take a signal from the handler that a
    program has for its children."""
    return _is_main_thread() or not callable(signal.getsignal(signal.SIGCHLD))


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _children_unnoticed() -> Iterator[None]:
    """The program's handler of SIGCHLD is called for its own children only."""
    handler = signal.getsignal(signal.SIGCHLD)
    if not callable(handler) or not _is_main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                signal.raise_signal(signal.SIGCHLD)  # one has ended meanwhile


def _answer(pipe: int, function: Callable[[], bytes], seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody ends it if the program is gone
    os.write(pipe, os.getpid().to_bytes(8, "big"))
    with contextlib.suppress(OSError):
        # Where memory runs out, it is ended, and not the program.
        Path("/proc/self/oom_score_adj").write_text("1000")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in [int(path.name) for path in Path("/dev/fd").iterdir()]:
        if descriptor not in (pipe, nothing):
            os.dup2(nothing, descriptor)
    sys.setprofile(None)
    sys.settrace(None)
    gc.disable()  # a collection would copy each object that the program has
    if _own_memory():
        sys.addaudithook(_end_if_it_reaches_out)
        try:
            answer = function()
        except Exception as error:
            answer = _FAILED + _traceback(error).encode() if strict else b""
        while answer:
            answer = answer[os.write(pipe, answer) :]


def _traceback(error: Exception) -> str:
    """Empty if it is one of the program, which cannot run again, and not of cgtool."""
    frames = traceback.extract_tb(error.__traceback__)
    is_own = package_part(frames[-1].filename).startswith("/cgtool/")
    is_bug = is_own and type(error) is not LookupError
    return "".join(traceback.format_exception(error)) if is_bug else ""


def _end_if_it_reaches_out(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REACHES_OUT or (
        event == "open"
        and (isinstance(flags := arguments[2], int) and flags & _WRITES)
        and arguments[0] != os.devnull
    ):
        os._exit(0)


def _own_memory() -> bool:
    """Replace memory that is shared with other processes by copies; False if that is too much."""
    areas = [*_shared_areas()]
    if sum(size for _, size in areas) > _MOST_SHARED:
        return False
    map_memory = ctypes.CDLL(None).mmap
    map_memory.restype = ctypes.c_void_p
    map_memory.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    for address, size in areas:
        values = ctypes.string_at(address, size)
        if map_memory(address, size, protection, how, -1, 0) != address:
            return False
        ctypes.memmove(address, values, size)
    return True


_MAP_FIXED = 0x10


def _shared_areas() -> Iterator[tuple[int, int]]:
    """Address and size of memory that is shared and can be written."""
    with contextlib.suppress(FileNotFoundError), Path("/proc/self/maps").open() as file:
        for line in file:
            area, permissions, *_ = line.split()
            if permissions.startswith("rw") and permissions.endswith("s"):
                first, last = (int(each, 16) for each in area.split("-"))
                yield first, last - first
