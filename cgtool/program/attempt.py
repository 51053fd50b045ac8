"""Run the user's code and turn what it raises into one failure with the user's own frames."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator

import msgspec
import torch

from cgtool.model.capture import Frame
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import Finding
from cgtool.observe.frames import exception_frames
from cgtool.program.blame import own_fault, unreadable
from cgtool.program.guarded_access import short, text_of
from cgtool.program.optimizers import capturable_fix, of_optimizer
from cgtool.program.workload import Part

Progress = Callable[[str], None]
Explain = Callable[[BaseException, str], Finding | None]
"""What an exception in a phase means; the frames are added by ``users_code``."""
_SHOWN_LINES = 8

_ENDED_EARLIER = ("previous error during capture", "StreamCaptureInvalidated")


def innermost(error: BaseException) -> BaseException:
    """The error that ended a capture: the one that users see may be raised while unwinding, and
    say only that there was another before it."""
    seen = {id(error)}
    while error.__context__ is not None and not error.__suppress_context__:
        if not any(words in text_of(error) for words in _ENDED_EARLIER):
            break
        error = error.__context__
        if id(error) in seen:
            break
        seen.add(id(error))
    return error


def _refusal(error: BaseException) -> CgtoolError | None:
    """What cgtool refused, when the user's code caught it and raised something else: on a GPU the
    capture had ended there too."""
    seen: set[int] = set()
    chain: BaseException | None = error
    while chain is not None and id(chain) not in seen:
        if isinstance(chain, CgtoolError):
            return chain
        seen.add(id(chain))
        chain = chain.__cause__ or chain.__context__
    return None


def _lines(error: BaseException) -> list[str]:
    return text_of(error).strip().splitlines()


def first_line(error: BaseException) -> str:
    lines = _lines(error)
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def users_code(
    part: Part, phase: str, explain: Explain = lambda _error, _phase: None
) -> Iterator[None]:
    """``explain`` says what an error means, when it can.

    Raises CgtoolError (exit 4) in place of every exception that is not a fault of cgtool's own.
    """
    try:
        yield
    except BaseException as error:
        refusal = _refusal(error)
        if refusal is not None:
            failure = (of_optimizer(refusal) or refusal).failure
            frames = failure.frames or part.frames
            raise CgtoolError(msgspec.structs.replace(failure, frames=frames)) from None
        root = innermost(error)
        raise _raised(part, phase, root, error, explain) or error from error


def _raised(
    part: Part,
    phase: str,
    root: BaseException,
    error: BaseException,
    explain: Explain,
) -> CgtoolError | None:
    """What the part did, or None for a fault of cgtool's."""
    frames = exception_frames(root) or exception_frames(error) or part.frames
    text = first_line(root)
    if isinstance(root, torch.OutOfMemoryError):
        return user_code(
            f"{part.name}: the GPU ran out of memory in {phase}",
            frames=frames,
            why=text,
            fix="use a smaller batch, or a device with more free memory",
            phase=phase,
            findings=(msgspec.structs.replace(met, frames=frames),)
            if (met := explain(root, phase)) is not None
            else (),
        )
    if own_fault(root):
        what = unreadable(root)
        if what is None:
            return None
        return user_code(
            f"{part.name}: cgtool cannot read the storage of {what}, in {phase}",
            frames=frames,
            why=f"cgtool follows the memory of every tensor, and PyTorch answers: {text}",
            fix="give and return the dense tensors that it is made of, or leave this part out",
            phase=phase,
        )
    found = explain(root, phase)
    why = _INTERRUPT if isinstance(root, KeyboardInterrupt) else None
    if found is not None:
        found = msgspec.structs.replace(
            found, frames=frames, fix=capturable_fix(root) or found.fix, phase=phase
        )
    return user_code(
        _sentence(part, phase, root, text),
        frames=frames,
        why=found.reason if found else why,
        fix=found.fix if found else capturable_fix(root),
        phase=phase,
        findings=(found,) if found else (),
    )


_INTERRUPT = "the code raised it, or sent SIGINT to its own process: Ctrl-C does not come this far"


def _sentence(part: Part, phase: str, error: BaseException, text: str) -> str:
    if isinstance(error, SystemExit):
        return f"{part.name} called sys.exit({short(error.code)}) in {phase}"
    kind = type(error).__name__
    return f"{part.name} raised {kind} in {phase}" + (f": {text}" if text != kind else "")


def _syntax(who: str, error: SyntaxError, otherwise: tuple[Frame, ...]) -> CgtoolError:
    only = "".join(traceback.TracebackException.from_exception(error).format_exception_only())
    # The first line is the place, which is a frame here; the last is the message.
    source = [line for line in only.splitlines()[:-1] if not line.startswith("  File ")]
    return user_code(
        f"{who} raised {type(error).__name__}: {error.msg}",
        frames=exception_frames(error) or otherwise,
        why="\n".join(source[:_SHOWN_LINES]) or None,
        phase="load",
    )


def load_error(
    who: str,
    error: BaseException,
    *,
    why: str | None = None,
    fix: str | None = None,
    otherwise: tuple[Frame, ...] = (),
) -> CgtoolError:
    """What the user's code raised while it was loaded. ``otherwise`` are the frames to name when
    the traceback has none of the user's."""
    if isinstance(error, CgtoolError):
        return error
    if isinstance(error, SyntaxError):
        return _syntax(who, error, otherwise)
    what = f"{who} raised {type(error).__name__}"
    lines = _lines(error)
    if isinstance(error, SystemExit):
        what = f"{who} ended with sys.exit({short(error.code)})"
        fix = fix or "keep what only a script does under: if __name__ == '__main__'"
    elif lines:
        what += f": {lines[0]}"
    if why is None and len(lines) > 1:
        why = "\n".join(lines[1:_SHOWN_LINES])
    if isinstance(error, ModuleNotFoundError) and fix is None:
        fix = f"install it where cgtool runs, {sys.prefix}, or run cgtool from its folder"
    elif isinstance(error, torch.OutOfMemoryError):
        fix = "use a smaller model or batch, or a device with more free memory"
    return user_code(
        what, frames=exception_frames(error) or otherwise, why=why, fix=fix, phase="load"
    )
