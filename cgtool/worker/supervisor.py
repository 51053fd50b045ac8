"""Start a worker, follow it, and turn whatever becomes of it into an answer. Knows no torch."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cgtool.model.capture import Frame
from cgtool.model.failure import CgtoolError, Failure, machine, usage, user_code
from cgtool.model.options import Request
from cgtool.observe.frames import folded, is_internal_file
from cgtool.worker import import_path, printing
from cgtool.worker.protocol import AHEAD, CHANNEL_LOST, READY, Ending, Message

Progress = Callable[[str], None]
_GRACE_SECONDS = 2.0
_IMPORT_SECONDS = 120.0
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


class WorkerBug(Exception):
    """The worker failed through a fault of cgtool's; the text is its traceback."""


class _Worker:
    def __init__(self, *, ahead: bool = False) -> None:
        """Start the process. With ``ahead`` it imports torch before it is asked anything."""
        self.phase = "start"
        self.ending: Ending | None = None
        """What the user's code said last that it was about to do to the process."""
        self._ended = False
        with contextlib.ExitStack() as held:
            printed = held.enter_context(printing.descriptor())
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="cgtool-"))
            self.stack_file = Path(folder) / "stacks"
            self.pipe, write_end = os.pipe()
            held.callback(os.close, self.pipe)
            self.process = self._start(write_end, printed, ahead=ahead)
            self._held = held.pop_all()

    def _start(self, write_end: int, printed: int, *, ahead: bool) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, write_end)
            # -P: a torch.py or random.py in the current folder must not stand in for the real one.
            # What the code under test prints goes to standard error: standard output is ours.
            return subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "cgtool.worker.child",
                    str(write_end),
                    str(self.stack_file),
                    *([AHEAD] if ahead else []),
                ],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=printed,
                pass_fds=(write_end,),
                start_new_session=True,
            )

    def ask(self, encoded: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(encoded)
            self.process.stdin.close()

    def is_ready(self) -> bool:
        """Wait until it has imported torch; False when it ends first, or takes too long."""
        with contextlib.suppress(TimeoutError):
            deadline = time.monotonic() + _IMPORT_SECONDS
            return any(message.phase == READY for message in self.messages(deadline))
        return False

    def messages(self, deadline: float | None) -> Iterator[Message]:
        """Messages until the pipe closes or the worker ends. Raises TimeoutError."""
        pieces: list[bytes] = []
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            wait = 0.25 if left is None else min(0.25, left)
            ready, _, _ = select.select([self.pipe], [], [], wait)
            if ready:
                chunk = os.read(self.pipe, 1 << 16)
                if not chunk:
                    return
                pieces.append(chunk)
                if b"\n" not in chunk:
                    continue
                *lines, rest = b"".join(pieces).split(b"\n")
                pieces = [rest]
                for line in lines:
                    try:
                        message = msgspec.json.decode(line, type=Message)
                    except (msgspec.MsgspecError, UnicodeError):
                        continue  # the code under test writes to any descriptor that it finds
                    yield message
            elif self.process.poll() is not None:
                # A child that it forked may hold the pipe open for ever.
                return

    def stack(self) -> tuple[Frame, ...]:
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

    def ask_stack(self) -> tuple[Frame, ...]:
        """Where the worker is right now, by faulthandler's signal."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
        return self.stack()

    def end(self) -> None:
        """Terminate the worker and everything that it started; a second Ctrl-C does not stop this
        half-way."""
        if self._ended:
            # By now its number may be that of another process.
            return
        self._ended = True
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with self._held:
                self._end()
        finally:
            signal.signal(signal.SIGINT, before)

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_SECONDS)
                if number == signal.SIGTERM:
                    continue


def _encoded(request: Request) -> bytes:
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        name = str(error.object).encode(errors="backslashreplace").decode()
        raise usage(f"{name}: not a name in UTF-8", fix="rename the file or its folder") from None


def run(request: Request, *, timeout: float | None = None, progress: Progress) -> None:
    """Run one attempt; on return the capture file lies at ``request.output``.

    Raises CgtoolError for everything that the user's code or this machine can do to it, WorkerBug
    for a fault of cgtool's, KeyboardInterrupt after the worker is gone.
    """
    try:
        encoded = _encoded(msgspec.structs.replace(request, path=import_path.of_this_process()))
        worker = _waiting.popleft() if _waiting else _Worker()
    except OSError as error:
        # No more processes, memory or open files; a folder or a Python that is gone.
        raise machine(f"a worker process cannot be started: {error}") from error
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        worker.ask(encoded)
        for message in worker.messages(deadline):
            if message.phase is not None:
                worker.phase = message.phase
                progress(message.phase)
            worker.ending = message.ending or worker.ending
            if message.failure is not None:
                raise CgtoolError(message.failure)
            if message.bug is not None:
                raise WorkerBug(message.bug)
            if message.done:
                return
        code = worker.process.wait()
        raise CgtoolError(_post_mortem(worker, code))
    except TimeoutError:
        frames = worker.ask_stack()
        raise user_code(
            f"no result after {timeout:g} s: stopped in phase '{worker.phase}'",
            frames=frames,
            why="the code was still running at this line" if frames else None,
            fix="give it longer with --timeout SECONDS, or look at the line for a loop or a "
            "wait that cannot end during capture",
            phase=worker.phase,
        ) from None
    finally:
        worker.end()


_waiting: deque[_Worker] = deque()


@contextlib.contextmanager
def ahead(count: int) -> Iterator[None]:
    """Start so many workers at once for what ``run`` does in this block, and wait until they have
    imported torch: side by side, and not while one of them is measuring."""
    started: list[_Worker] = []
    try:
        # Where no more can be started, ``run`` says why.
        with contextlib.suppress(OSError):
            while len(started) < count:
                started.append(_Worker(ahead=True))
        _waiting.extend([one for one in started if one.is_ready()])
        yield
    finally:
        _waiting.clear()
        for one in started:
            one.end()


def _post_mortem(worker: _Worker, code: int) -> Failure:
    """The worker ended without an answer."""
    frames = worker.stack()
    where = f"in phase '{worker.phase}'"
    ending = worker.ending
    if ending is not None and ending.status == code:
        return user_code(
            f"the code under test {ending.what} {where}",
            frames=ending.frames or frames,
            why="the process ended there and then: nothing is left to capture",
            fix="leave the call out of what the entry point runs",
            phase=worker.phase,
        ).failure
    if code == -signal.SIGKILL:
        return user_code(
            f"the worker process was killed {where}",
            frames=frames,
            why="SIGKILL from outside: most often the kernel, because the host ran out of memory",
            fix="use smaller tensors, or a machine with more memory",
            phase=worker.phase,
        ).failure
    if code < 0:
        return _signalled(worker, -code, where, frames)
    if code == CHANNEL_LOST:
        return user_code(
            f"the code under test closed the worker's file descriptors {where}",
            frames=frames,
            fix="close only descriptors that the code opened itself",
            phase=worker.phase,
        ).failure
    return user_code(
        f"the code under test ended the process with exit code {code} {where}",
        frames=frames,
        why="a library that ends the process leaves nothing to capture",
        phase=worker.phase,
    ).failure


_CRASHES = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS)
)


def _signalled(worker: _Worker, number: int, where: str, frames: tuple[Frame, ...]) -> Failure:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number in _CRASHES:
        return user_code(
            f"the code under test crashed the process with {name} {where}",
            frames=frames,
            why="native code failed while this line ran" if frames else None,
            fix="run it outside cgtool, with python -X faulthandler, to see it alone",
            phase=worker.phase,
        ).failure
    return user_code(
        f"the worker process was ended by {name} {where}",
        frames=frames,
        why="the code under test set it off, or it came from outside"
        + (", while this line ran" if frames else ""),
        phase=worker.phase,
    ).failure
