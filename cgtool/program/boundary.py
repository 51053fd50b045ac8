"""The boundary to the user's code: whose fault an exception is, and what the user reads of it."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import msgspec
import torch

from cgtool.model.capture import Frame
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import Finding
from cgtool.observe.frames import call_op, call_user, exception_frames, is_internal
from cgtool.program.guarded_access import short, text_of
from cgtool.program.workload import Part

Explain = Callable[[BaseException, str], Finding | None]
"""What an exception in a phase means; the frames are added by ``user_errors``."""
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
def user_errors(
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


_OWN_FOLDER = str(Path(__file__).parent.parent) + "/"
_STATEFUL = tuple(
    f"{folder}/" for module in (torch.nn.modules, torch.optim) for folder in module.__path__
)
"""Folders of PyTorch's classes that hold the user's state: an exception there is the user's."""
_MODE_METHODS = ("__torch_function__", "__torch_dispatch__")
_NO_STORAGE = {
    "Cannot access storage of SparseCsr": "a compressed sparse tensor (CSR, CSC, BSR, BSC)",
    "Cannot access storage of Sparse": "a sparse tensor",
    "Cannot access storage of Nested": "a nested tensor",
    "Cannot access storage of Batched": "a tensor inside torch.vmap",
    "Cannot access storage of": "a tensor without a storage",
    "on an invalid python storage": "a tensor subclass that wraps other tensors",
    "Cannot access data pointer": "a tensor without memory",
}
"""PyTorch's messages for a tensor without memory of its own, and what such a tensor is."""


def unreadable(error: BaseException) -> str | None:
    """``a sparse tensor``: the kind of tensor whose storage could not be read, if that failed."""
    text = text_of(error)
    return next((kind for words, kind in _NO_STORAGE.items() if words in text), None)


def own_fault(error: BaseException) -> bool:
    """True for a bug in cgtool: its code raised this, and neither the user's code nor an op did.

    Decided by the innermost frames of the traceback. ``call_user`` is the boundary: whatever it
    called is the user's. ``call_op`` is transparent: an op that fails belongs to its caller.
    """
    if not isinstance(error, Exception) or isinstance(error, MemoryError):
        return False
    if isinstance(error, torch.OutOfMemoryError) or "CUDA" in text_of(error)[:40]:
        # The GPU reports errors late, at whatever call comes next.
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, RecursionError):
        # The limit is reached anywhere; whoever has most of the frames recurses.
        return 2 * sum(map(_is_own, codes)) > len(codes)
    has_failed_op = False
    while codes:
        code = codes.pop()
        if code is call_user.__code__:
            return False
        if code is call_op.__code__:
            has_failed_op = True
            while codes and _is_own(codes[-1]) and codes[-1] is not call_user.__code__:
                codes.pop()
        elif _is_own(code):
            return not _replaces_pytorch(code, codes)
        elif not is_internal(code) or code.co_filename.startswith(_STATEFUL):
            return False
    # No frame of the user's at all: an op that failed was cgtool's own call.
    return has_failed_op


def _is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(_OWN_FOLDER)


def _replaces_pytorch(code: CodeType, callers: list[CodeType]) -> bool:
    """True when the user's line called this in place of a function of PyTorch's: it raises where
    that function would raise."""
    callers = callers.copy()
    while callers and _is_own(callers[-1]):
        code = callers.pop()
    is_called_by_user = bool(callers) and not is_internal(callers[-1])
    return is_called_by_user and code.co_name not in _MODE_METHODS


_FOLDER = str(Path(torch.optim.__file__).parent) + "/"


def _optimizer_behind(error: BaseException) -> torch.optim.Optimizer | None:
    """The optimizer in whose own code this was raised; not in a closure of the user's."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(_FOLDER):
            owner = frame.f_locals.get("self")
            found = owner if isinstance(owner, torch.optim.Optimizer) else found
        elif not is_internal(frame.f_code):
            found = None
    return found


def capturable_fix(error: BaseException) -> str | None:
    """What to change, when ``error`` says that ``step()`` cannot be captured as it is."""
    if "captur" not in text_of(error):
        return None
    optimizer = _optimizer_behind(error)
    if optimizer is None:
        return None
    name = type(optimizer).__name__
    groups = optimizer.param_groups
    if not any("capturable" in group for group in groups):
        return (
            f"{name} has no capturable=True: call its step() after the replay, or use an "
            "optimizer that has it (Adam, AdamW, RMSprop, NAdam, ...)"
        )
    if all(group.get("capturable") for group in groups):
        return None
    return f"construct it with capturable=True: {name}(..., capturable=True)"


def of_optimizer(error: CgtoolError) -> CgtoolError | None:
    """The same failure with the advice for the optimizer that it came from, if it did."""
    fix = capturable_fix(error)
    if fix is None:
        return None
    return CgtoolError(msgspec.structs.replace(error.failure, fix=fix))
