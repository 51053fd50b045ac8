"""Start a worker process, follow it, and turn whatever happens to it into an answer. No torch."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

import cgtool
from cgtool.model.capture import Frame, Frames
from cgtool.model.failure import EXIT_INTERRUPTED, CgtoolError, machine, usage, user_code
from cgtool.model.jobs import (
    AHEAD,
    CHANNEL_LOST,
    READY,
    RUNS_SCRIPT,
    Answer,
    AnyJob,
    Ending,
    Message,
    Question,
    Request,
    StepJob,
)
from cgtool.model.options import Progress
from cgtool.observe.frames import folded, is_internal_file
from cgtool.worker.user_process import signal_name

_GRACE_SECONDS = 2.0
_IMPORT_SECONDS = 120.0
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_CRASHES = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS)
)


def run(
    job: AnyJob, output: Path, *, timeout: float | None = None, progress: Progress = lambda _: None
) -> bool:
    """Do a job in a worker process; when this returns, the answer is at ``output``.

    The first Ctrl-C while a script runs goes to the script, as in a terminal: its answer is what
    was found until then, and this returns True.

    ``timeout`` is in seconds. Raises CgtoolError for everything that the user's code or this
    machine can do to the worker, RuntimeError with the worker's traceback for a bug in cgtool, and
    KeyboardInterrupt after the worker has ended.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with _working(job, output, timeout) as worker:
        worker.close()
        try:
            _await(worker, deadline, progress)
        except KeyboardInterrupt:
            if worker.phase != RUNS_SCRIPT:
                raise
            progress("interrupted; Ctrl-C again does not wait for what was found")
            os.killpg(worker.process.pid, signal.SIGINT)
            try:
                _await(worker, deadline, progress)
            except CgtoolError as error:
                raise CgtoolError(replace(error.failure, exit_code=EXIT_INTERRUPTED)) from None
            return True
    return False


@contextlib.contextmanager
def conversation(
    job: StepJob,
    output: Path,
    *,
    timeout: float | None = None,
    progress: Progress = lambda _: None,
) -> Iterator[Callable[[Question], Answer]]:
    """A worker process that has captured, and answers questions while this is entered.

    ``timeout`` is for the capture, and for each answer; the first Ctrl-C while a question is
    answered goes to the worker, which then answers as soon as it can. Raises what ``run`` does.
    """

    def deadline() -> float | None:
        return None if timeout is None else time.monotonic() + timeout

    with _working(job, output, timeout) as worker:

        def ask(question: Question) -> Answer:
            worker.send(msgspec.json.encode(question))
            try:
                return _await(worker, deadline(), lambda _: None)
            except KeyboardInterrupt:
                worker.process.send_signal(signal.SIGINT)
                return _await(worker, deadline(), lambda _: None)

        _await(worker, deadline(), progress)
        yield ask


@contextlib.contextmanager
def _working(job: AnyJob, output: Path, timeout: float | None) -> Iterator[Worker]:
    """A worker that has its request, and ends with this block. Raises what ``run`` does."""
    try:
        request = msgspec.json.encode(Request(job, str(output), import_path()))
    except UnicodeEncodeError as error:
        name = str(error.object).encode(errors="backslashreplace").decode()
        raise usage(f"{name}: not a name in UTF-8", fix="rename the file or its folder") from None
    try:
        worker = _waiting.popleft() if _waiting else Worker()
    except OSError as error:
        # No more processes, memory or open files; a folder or a Python that was removed.
        raise machine(f"a worker process cannot be started: {error}") from error
    try:
        worker.send(request)
        yield worker
    except TimeoutError:
        frames = worker.stack_now()
        raise user_code(
            f"no result after {timeout:g} s: stopped in phase '{worker.phase}'",
            frames=frames,
            why="the code was still running at this line" if frames else None,
            fix="increase --timeout SECONDS, or look at the line for a loop or a wait that does "
            "not end",
            phase=worker.phase,
        ) from None
    finally:
        worker.end()


def _await(worker: Worker, deadline: float | None, progress: Progress) -> Answer:
    """Return when the worker is done, or has answered a question. Raises what ``run`` does, and
    TimeoutError."""
    for message in worker.messages(deadline):
        if message.phase is not None:
            worker.phase = message.phase
            progress(message.phase)
        worker.ending = message.ending or worker.ending
        if message.failure is not None:
            raise CgtoolError(message.failure)
        if message.bug is not None:
            raise RuntimeError(message.bug)
        if message.answer is not None or message.done:
            return message.answer or Answer()
    raise _post_mortem(worker, worker.process.wait())


def import_path() -> tuple[str, ...]:
    """``sys.path`` of this process as absolute paths, without the folder of console scripts, which
    Python puts first. A path that is not UTF-8 cannot be sent and is left out."""
    folders = [
        os.path.abspath(folder)  # noqa: PTH100 : links stay links
        for folder in sys.path
        if isinstance(folder, str) and folder.encode(errors="ignore").decode() == folder
    ]
    scripts = sysconfig.get_path("scripts")
    return tuple(dict.fromkeys(folder for folder in folders if folder != scripts))


_waiting: deque[Worker] = deque()


@contextlib.contextmanager
def ahead(count: int) -> Iterator[None]:
    """Start ``count`` workers at once for what ``run`` does in this block, and wait until they have
    imported torch: side by side, and not while one of them measures."""
    started: list[Worker] = []
    try:
        # Where no more can be started, ``run`` says why.
        with contextlib.suppress(OSError):
            while len(started) < count:
                started.append(Worker(ahead=True))
        _waiting.extend([worker for worker in started if worker.is_ready()])
        yield
    finally:
        _waiting.clear()
        for worker in started:
            worker.end()


@contextlib.contextmanager
def standard_error() -> Iterator[int]:
    """A descriptor for what the user's code prints.

    Where ``sys.stderr`` has none (``pytest --capture=sys``, ``redirect_stderr``, a notebook), it is
    a file's, whose text is written to ``sys.stderr`` at the end.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, ValueError, OSError):
        with tempfile.TemporaryFile("w+", errors="replace") as file:
            try:
                yield file.fileno()
            finally:
                file.seek(0)
                # sys.stderr may be closed, or None.
                with contextlib.suppress(AttributeError, ValueError, OSError):
                    shutil.copyfileobj(file, sys.stderr)
    else:
        yield descriptor


_PARENT = str(Path(cgtool.__file__).resolve().parent.parent)
_START = (
    f"import runpy, sys; sys.path.insert(0, {_PARENT!r}); import cgtool; del sys.path[0]; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""``python -m``, with the cgtool of this process, which need not be installed: it may be a clone in
the current folder."""


class Worker:
    """A worker process, and the pipe on which it answers."""

    def __init__(self, *, ahead: bool = False) -> None:
        """Start the process. With ``ahead`` it imports torch before it reads a request."""
        self.phase = "start"
        self.ending: Ending | None = None
        """The last way to end the process that the user's code announced."""
        self._ended = False
        self._unread = b""
        with contextlib.ExitStack() as held:
            printed = held.enter_context(standard_error())
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="cgtool-"))
            self.stack_file = Path(folder) / "stacks"
            self.pipe, write_end = os.pipe()
            held.callback(os.close, self.pipe)
            # -P: a torch.py or random.py in the current folder must not hide the real module.
            command = [sys.executable, "-P", "-c", _START, "cgtool.worker.child"]
            command += [str(write_end), str(self.stack_file), *([AHEAD] if ahead else [])]
            try:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    # What the user's code prints: standard output is for results.
                    stdout=printed,
                    stderr=printed,
                    pass_fds=(write_end,),
                    start_new_session=True,
                )
            finally:
                os.close(write_end)
            self._held = held.pop_all()

    def send(self, request: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(request + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """There is nothing more to send."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def is_ready(self) -> bool:
        """Wait until it has imported torch; False when it ends first, or takes too long."""
        with contextlib.suppress(TimeoutError):
            deadline = time.monotonic() + _IMPORT_SECONDS
            return any(message.phase == READY for message in self.messages(deadline))
        return False

    def messages(self, deadline: float | None) -> Iterator[Message]:
        """Messages until the pipe closes or the worker ends. Raises TimeoutError."""
        while True:
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                try:
                    message = msgspec.json.decode(line, type=Message)
                except (msgspec.MsgspecError, UnicodeError):
                    continue  # the user's code may write to any descriptor
                yield message
            if not (chunk := self._read(deadline)):
                return
            self._unread += chunk

    def _read(self, deadline: float | None) -> bytes:
        """Reads what the worker wrote to the pipe; empty if the pipe was closed or the worker
        ended. Raises TimeoutError."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.pipe, selectors.EVENT_READ)
            while True:
                left = math.inf if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                if selector.select(min(0.25, left)):
                    return os.read(self.pipe, 1 << 16)
                if self.process.poll() is not None:
                    # A process that it forked may keep the pipe open.
                    return b""

    def stack(self) -> Frames:
        """The user's frames of the newest stack that faulthandler wrote, innermost first."""
        try:
            text = self.stack_file.read_text(errors="replace")
        except OSError:
            return ()
        block = text.rpartition("(most recent call first):")[2]
        frames = [
            Frame(match[1], int(match[2]), match[3])
            for line in block.splitlines()
            if (match := _FRAME.match(line))
        ]
        return folded([frame for frame in frames if not is_internal_file(frame.file)])

    def stack_now(self) -> Frames:
        """The user's frames at this moment, which faulthandler writes at a signal."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
        return self.stack()

    def end(self) -> None:
        """Terminate the worker and all that it started, from any thread; a second Ctrl-C does not
        interrupt this."""
        if self._ended:
            # By now another process may have its number.
            return
        self._ended = True
        with _uninterrupted(), self._held:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_GRACE_SECONDS)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C does nothing in this block. Other threads are never interrupted, and Python lets only
    the main thread change that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _post_mortem(worker: Worker, code: int) -> CgtoolError:
    """Why the worker ended without an answer, from its exit code (negative: a signal)."""
    frames, phase = worker.stack(), worker.phase
    why = fix = None
    if worker.ending is not None and worker.ending.status == code:
        message = f"the code under test {worker.ending.action}"
        frames = worker.ending.frames or frames
        why = "the process ended there: nothing is left to capture"
        fix = "remove the call from what the entry point runs"
    elif code == -signal.SIGKILL:
        message = "the worker process was killed"
        why = "SIGKILL came from outside, most likely because the host ran out of memory"
        fix = "use smaller tensors, or a machine with more memory"
    elif -code in _CRASHES:
        message = f"the code under test crashed the process with {signal_name(-code)}"
        why = "native code failed while this line ran" if frames else None
        fix = "run it outside cgtool with `python -X faulthandler` to isolate the crash"
    elif code < 0:
        message = f"the worker process was ended by {signal_name(-code)}"
        why = "the code under test raised it, or it came from outside"
        why += ", while this line ran" if frames else ""
    elif code == CHANNEL_LOST:
        message = "the code under test closed the worker's file descriptors"
        fix = "close only descriptors that the code opened itself"
    else:
        message = f"the code under test ended the process with exit code {code}"
        why = "a library that ends the process leaves nothing to capture"
    message = f"{message} in phase '{phase}'"
    return user_code(message, frames=frames, why=why, fix=fix, phase=phase)
