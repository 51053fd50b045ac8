"""The worker process: the only one that imports torch and runs the user's code.

One attempt, one process: a failed capture leaves streams, pools and random states unusable.
``python -m cgtool.worker.child FD STACK_FILE`` reads a Request from standard input and answers on
the file descriptor.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TextIO

import msgspec

from cgtool.model.failure import CgtoolError, Failure, user_code
from cgtool.model.options import Request
from cgtool.worker.protocol import CHANNEL_LOST, Message


class Channel:
    """The way back to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()

    def send(self, message: Message) -> None:
        if os.getpid() != self._process:
            # A child that the code under test forked has come back out of it: it has no part here.
            os._exit(0)
        line = msgspec.json.encode(message) + b"\n"
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            os._exit(CHANNEL_LOST)

    def phase(self, text: str) -> None:
        self.send(Message(phase=text))


def _choose_device(wanted: str | None) -> tuple[str, str | None]:
    """(device for factories, why it is the simulated one or None)."""
    import torch

    if wanted == "simulated":
        return "simulated", "--device simulated was asked for"
    if torch.cuda.is_available():
        return wanted or "cuda", None
    reason = (
        "PyTorch here is built without CUDA"
        if torch.version.cuda is None
        else "PyTorch sees no usable GPU"
    )
    if wanted is not None:
        raise CgtoolError(
            Failure(f"--device {wanted}: {reason}", 3, fix="leave --device out to simulate")
        )
    return "simulated", reason


def attempt(request: Request, channel: Channel) -> None:
    """Load, capture, maybe time, and write the file."""
    channel.phase("import torch")
    device, why = _choose_device(request.capture.device)
    if why is not None:
        if request.bench is not None:
            raise CgtoolError(
                Failure(
                    f"bench needs a GPU to measure on, and {why[0].lower() + why[1:]}"
                    if not why.startswith("PyTorch")
                    else f"bench needs a GPU to measure on: {why}",
                    3,
                )
            )
        _simulate(request, channel, why)
        return
    from cgtool.cuda import backend, bench
    from cgtool.entry.load import load
    from cgtool.model import file

    channel.phase("load")
    workload = load(request.spec, device=device, inputs=request.inputs, seed=request.capture.seed)
    if request.bench is not None:
        capture, raw = bench.run(workload, request.capture, request.bench, channel.phase)
    else:
        capture, raw = backend.capture(workload, request.capture, channel.phase)
    channel.phase("write")
    file.write(Path(request.output), capture, raw)


def _simulate(request: Request, channel: Channel, why: str) -> None:
    from cgtool.entry.load import load
    from cgtool.model import file
    from cgtool.simulated import backend

    with backend.session() as device:
        channel.phase("load")
        workload = load(
            request.spec,
            device=backend.DEVICE,
            inputs=request.inputs,
            seed=request.capture.seed,
        )
        capture = backend.capture(device, workload, request.capture, channel.phase, why)
    channel.phase("write")
    file.write(Path(request.output), capture)


def _failure_of(error: BaseException) -> Message:
    from cgtool.record.frames import exception_frames

    if isinstance(error, CgtoolError):
        return Message(failure=error.failure)
    frames = exception_frames(error)
    text = str(error).strip().splitlines()
    what = type(error).__name__ + (f": {text[0]}" if text else "")
    if isinstance(error, MemoryError):
        return Message(failure=user_code("the host ran out of memory", frames=frames).failure)
    if isinstance(error, SystemExit):
        what = f"the code under test called sys.exit({error.code!r})"
        return Message(failure=user_code(what, frames=frames).failure)
    if frames:
        return Message(failure=user_code(what, frames=frames).failure)
    return Message(bug="".join(traceback.format_exception(error)))


def main() -> None:
    descriptor, stack_file = int(sys.argv[1]), sys.argv[2]
    # Kept open under a name of its own: the code under test may close any descriptor it finds.
    stacks: TextIO = Path(stack_file).open("w")  # noqa: SIM115
    faulthandler.enable(stacks, all_threads=False)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
    channel = Channel(descriptor)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    code = 0
    try:
        attempt(request, channel)
        channel.send(Message(done=True))
    except BaseException as error:  # whatever the user's code raises must be answered
        code = 1
        if isinstance(error, KeyboardInterrupt):
            code = 130
        else:
            channel.send(_failure_of(error))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    # Threads of the user's that never end, and finalizers of half-torn graphs, are left behind.
    os._exit(code)


if __name__ == "__main__":
    main()
