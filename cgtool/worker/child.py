"""The worker process: the only one that imports torch and runs the user's code.

One attempt, one process: a failed capture leaves streams, pools and random states unusable.
``python -m cgtool.worker.child FD STACK_FILE`` reads a Request from standard input and answers on
the file descriptor; with ``ahead`` behind that it imports torch first.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import traceback
import warnings
from os import _exit as _leave
from os import getpid as _getpid
from os import write as _write
from pathlib import Path
from typing import TextIO

import msgspec

from cgtool.model.failure import EXIT_USER_CODE, CgtoolError, Failure, user_code
from cgtool.model.options import Request
from cgtool.torch_compat.private import PYTREE_MODULE
from cgtool.worker.endings import write_stacks
from cgtool.worker.originals import Originals, Replaced, described, frames_of
from cgtool.worker.protocol import AHEAD, CHANNEL_LOST, READY, Ending, Message, encode


class Channel:
    """The way back to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = _getpid()

    def send(self, message: Message) -> None:
        if _getpid() != self._process:
            # A child that the code under test forked has come back out of it: it has no part here.
            _leave(0)
        line = encode(message)
        try:
            while line:
                line = line[_write(self._descriptor, line) :]
        except OSError:
            _leave(CHANNEL_LOST)

    def phase(self, text: str) -> None:
        self.send(Message(phase=text))

    def ending(self, ending: Ending) -> None:
        self.send(Message(ending=ending))


_RELIED_ON = (
    "torch", "torch.autograd", "torch.cuda", PYTREE_MODULE, "torch.Tensor",
    "torch.nn.Module", "torch.nn.modules.module", "torch.autograd.Function",
)  # fmt: skip


def _attempt(request: Request, channel: Channel, originals: Originals) -> None:
    from cgtool.jobs import attempt as jobs
    from cgtool.worker import endings, import_path, warned

    import_path.extend(request.path)

    def before_load() -> None:
        endings.announce(channel.ending)
        warned.show_at_users_line()
        originals.keep(*_RELIED_ON)
        channel.phase("load")

    jobs.attempt(request, channel.phase, before_load)


def _answer(error: BaseException, replaced: list[Replaced]) -> Message:
    from cgtool.observe.frames import exception_frames
    from cgtool.program.boundary import own_fault, unreadable

    if isinstance(error, CgtoolError):
        return Message(failure=_explained(error.failure, replaced))
    frames = exception_frames(error)
    what = _sentence(error)
    if isinstance(error, MemoryError):
        return Message(failure=user_code("the host ran out of memory", frames=frames).failure)
    if not own_fault(error):
        return Message(failure=_explained(user_code(what, frames=frames).failure, replaced))
    if replaced:
        return Message(
            failure=user_code(
                f"the code under test replaced {described(replaced)}",
                frames=frames_of(replaced),
                why=f"cgtool and PyTorch work with it, and failed with {what}",
                fix="put it back before the entry point returns",
            ).failure
        )
    unread = unreadable(error)
    if unread is not None:
        return Message(
            failure=user_code(
                f"cgtool cannot read the storage of {unread}", frames=frames, why=what
            ).failure
        )
    return Message(bug="".join(traceback.format_exception(error)))


def _sentence(error: BaseException) -> str:
    from cgtool.program.guarded_access import short, text_of

    if isinstance(error, SystemExit):
        return f"the code under test called sys.exit({short(error.code)})"
    text = text_of(error).strip().splitlines()
    what = type(error).__name__ + (f": {text[0]}" if text else "")
    return what if isinstance(error, Exception) else f"the code under test raised {what}"


def _explained(failure: Failure, replaced: list[Replaced]) -> Failure:
    """With what the user's code broke, where nothing else explains the failure."""
    broken = [one for one in replaced if one.is_broken]
    if not broken or failure.why is not None or failure.exit_code != EXIT_USER_CODE:
        return failure
    return msgspec.structs.replace(
        failure,
        frames=failure.frames or frames_of(broken),
        why=f"the code under test replaced {described(broken)}",
    )


_PR_SET_PDEATHSIG = 1


def _end_with_the_parent() -> None:
    """When the process that waits for the answer is killed, this one ends too (prctl(2))."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_AHEAD = (
    "torch",
    "cgtool.jobs.attempt",
    "cgtool.devices.cuda.bench",
    "torch.fx.experimental.symbolic_shapes",
)
"""What a run imports in the end: ``torch.autograd.grad`` the last one, and with it all of sympy."""


def _import_ahead() -> None:
    for name in _AHEAD:
        # What goes wrong here goes wrong again once there is somebody to tell.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main() -> None:
    _end_with_the_parent()
    descriptor, stack_file = int(sys.argv[1]), sys.argv[2]
    # Kept open under a name of its own: the code under test may close any descriptor it finds.
    stacks: TextIO = Path(stack_file).open("w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
    write_stacks(stacks)
    channel = Channel(descriptor)
    # PyTorch says so at every import where numpy is not installed. No capture needs it.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    # And so at the first backward that begins with a matrix product, as it does without a loss.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no", UserWarning)
    originals = Originals()
    if AHEAD in sys.argv[3:]:
        _import_ahead()
        channel.phase(READY)
    asked = sys.stdin.buffer.read()
    if not asked:
        # Nobody needs this worker any more.
        _leave(0)
    request = msgspec.json.decode(asked, type=Request)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    code = 0
    try:
        _attempt(request, channel, originals)
        channel.send(Message(done=True))
    except BaseException as error:  # whatever the user's code raises must be answered
        code = 1
        channel.send(_answer(error, originals.restore()))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user's own objects may stand there
            stream.flush()
    # Threads of the user's that never end, and finalizers of half-torn graphs, are left behind.
    _leave(code)


if __name__ == "__main__":
    main()
