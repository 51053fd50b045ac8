"""The boundary to the user's code: whether an exception is the user's, and how it is reported.

The frames of ``call_user`` and ``call_op`` in a traceback mark where cgtool calls the user's code,
and where it runs an op that somebody else called (below a dispatch key: ``RUN_CODE``).
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import torch
from msgspec.structs import replace

from cgtool.model.capture import Frames
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import Finding
from cgtool.observe.frames import call_op, call_user, exception_frames, is_internal
from cgtool.observe.script.events import Publisher
from cgtool.program.objects import short, text_of
from cgtool.program.workload import WorkloadPart
from cgtool.torch_compat.call_key import CALL_KERNEL_CODE
from cgtool.torch_compat.dispatch_keys import RUN_CODE, is_unconvertible
from cgtool.torch_compat.op_key import KERNEL_CODES

_OWN_FOLDER = str(Path(__file__).parent.parent) + "/"
_WORKER_FOLDER = f"{_OWN_FOLDER}worker/"
_STATEFUL = tuple(
    f"{folder}/" for module in (torch.nn.modules, torch.optim) for folder in module.__path__
)
"""Folders of PyTorch's classes that hold the user's state: an exception there is the user's."""
_MODE_METHODS = ("__torch_function__", "__torch_dispatch__")
_RUN_OP = (call_op.__code__, RUN_CODE)
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
    if is_unconvertible(error):
        # PyTorch's own kernels are in C++: cgtool's is the one in Python.
        return True
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, RecursionError):
        # The limit is reached anywhere; whoever has most of the frames recurses.
        return 2 * sum(map(_is_own, codes)) > len(codes)
    has_failed_op = False
    while codes:
        code = codes.pop()
        if code is call_user.__code__:
            return False
        if any(code is run for run in _RUN_OP):
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
    """True when the user's line called this instead of a function of PyTorch's: it raises where
    that function would raise. What subscribes to events replaces nothing."""
    callers = callers.copy()
    while callers and _is_own(callers[-1]):
        code = callers.pop()
        if code is Publisher.publish.__code__:
            return False
    is_called_by_user = bool(callers) and not is_internal(callers[-1])
    is_entry = (
        code.co_name in _MODE_METHODS
        or code in (*KERNEL_CODES, CALL_KERNEL_CODE)
        or code.co_filename.startswith(_WORKER_FOLDER)
    )
    return is_called_by_user and not is_entry


_OPTIMIZERS = str(Path(torch.optim.__file__).parent) + "/"


def capturable_fix(error: BaseException) -> str | None:
    """The fix for an optimizer whose ``step()`` cannot be captured as it is; else None.

    PyTorch's optimizers keep the step count on the host unless ``capturable=True`` moves it to the
    device. Some refuse to be captured then, others read a value in the middle of ``step()``.
    """
    if "captur" not in text_of(error):
        return None
    optimizer = _optimizer_of(error)
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


def _optimizer_of(error: BaseException) -> torch.optim.Optimizer | None:
    """The optimizer in whose own code this was raised; not in a closure of the user's."""
    optimizer = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(_OPTIMIZERS):
            owner = frame.f_locals.get("self")
            optimizer = owner if isinstance(owner, torch.optim.Optimizer) else optimizer
        elif not is_internal(frame.f_code):
            optimizer = None
    return optimizer


Explain = Callable[[BaseException, str], Finding | None]
"""The finding behind an exception in a phase, if there is one; ``user_errors`` adds the frames."""
_SHOWN_LINES = 8
_ENDED_EARLIER = ("previous error during capture", "StreamCaptureInvalidated")


@contextlib.contextmanager
def user_errors(part: WorkloadPart, phase: str, explain: Explain) -> Iterator[None]:
    """Run a phase of the user's code: what it raises becomes a CgtoolError (exit 4).

    Bugs of cgtool pass as they are.
    """
    try:
        yield
    except BaseException as error:
        refusal = _refusal(error)
        if refusal is not None:
            frames = refusal.failure.frames or part.frames
            fix = capturable_fix(refusal) or refusal.failure.fix
            findings = tuple(
                replace(finding, frames=finding.frames or frames)
                for finding in refusal.failure.findings
            )
            failure = replace(refusal.failure, frames=frames, fix=fix, findings=findings)
            raise CgtoolError(failure) from None
        root = innermost(error)
        frames = exception_frames(root) or exception_frames(error) or part.frames
        raise _phase_error(part, phase, root, frames, explain) or error from error


def innermost(error: BaseException) -> BaseException:
    """The error that ended a capture. The one that arrives may be raised during unwinding, and
    say only that there was an error before it."""
    visited = {id(error)}
    while error.__context__ is not None and not error.__suppress_context__:
        if not is_consequence(text_of(error)):
            break
        error = error.__context__
        if id(error) in visited:
            break
        visited.add(id(error))
    return error


def is_consequence(text: str) -> bool:
    """Whether this message of CUDA's says only that there was an error before."""
    return any(words in text for words in _ENDED_EARLIER)


def _refusal(error: BaseException) -> CgtoolError | None:
    """The CgtoolError behind this one, when the user's code caught it and raised something else:
    on a GPU the capture would have ended there too."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        if isinstance(cause, CgtoolError):
            return cause
        visited.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def _phase_error(
    part: WorkloadPart, phase: str, error: BaseException, frames: Frames, explain: Explain
) -> CgtoolError | None:
    """None for a bug of cgtool's."""
    text = first_line(error)
    if own_fault(error):
        kind = unreadable(error)
        if kind is None:
            return None
        return user_code(
            f"{part.name}: cgtool cannot read the storage of {kind}, in {phase}",
            frames=frames,
            why=f"cgtool follows the memory of every tensor, and PyTorch raises: {text}",
            fix="pass and return the dense tensors that it consists of, or leave this part out",
            phase=phase,
        )
    finding = explain(error, phase)
    findings = () if finding is None else (replace(finding, frames=frames),)
    if isinstance(error, torch.OutOfMemoryError):
        return user_code(
            f"{part.name}: the GPU ran out of memory in {phase}",
            frames=frames,
            why=text,
            fix="use a smaller batch, or a device with more free memory",
            phase=phase,
            findings=findings,
        )
    if isinstance(error, SystemExit):
        message, fix = f"{part.name} called sys.exit({short(error.code)}) in {phase}", None
    else:
        kind = type(error).__name__
        message = f"{part.name} raised {kind} in {phase}" + (f": {text}" if text != kind else "")
        fix = capturable_fix(error)
    why = None
    if isinstance(error, KeyboardInterrupt):
        why = "the code raised it, or sent SIGINT to its own process: Ctrl-C does not reach it"
    if findings:
        why, fix = findings[0].reason, fix or findings[0].fix
        findings = (replace(findings[0], fix=fix, phase=phase),)
    return user_code(message, frames=frames, why=why, fix=fix, phase=phase, findings=findings)


def first_line(error: BaseException) -> str:
    """The first line of the message; the type's name if there is none."""
    lines = text_of(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _not_found(error: BaseException | None) -> str | None:
    """The module that an import did not find. Packages that import their parts when they are used
    raise another error because of that, which names none."""
    while isinstance(error, ImportError):
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name
        error = error.__cause__
    return None


def load_error(
    who: str,
    error: BaseException,
    *,
    why: str | None = None,
    fix: str | None = None,
    otherwise: Frames = (),
) -> CgtoolError:
    """The failure for an exception of the user's code while it was loaded. ``who``: the subject of
    the sentence. ``otherwise``: the frames to show when the traceback has none of the user's."""
    if isinstance(error, CgtoolError):
        return error
    message = f"{who} raised {type(error).__name__}"
    lines = text_of(error).strip().splitlines()
    if isinstance(error, SyntaxError):
        message += f": {error.msg}"
        only = traceback.TracebackException.from_exception(error).format_exception_only()
        # The first line is the place, which is a frame here; the last is the message.
        source = "".join(only).splitlines()[:-1]
        why = "\n".join([line for line in source if not line.startswith("  File ")][:_SHOWN_LINES])
        why, fix = why or None, None
    elif isinstance(error, SystemExit):
        message = f"{who} ended with sys.exit({short(error.code)})"
        move = "move code that only a script runs under `if __name__ == '__main__':`"
        # 2 is how argparse ends a program whose arguments it does not accept.
        fix = fix or (f"give its arguments after `--`; or {move}" if error.code == 2 else move)
    elif lines:
        message += f": {lines[0]}"
    if why is None and len(lines) > 1 and not isinstance(error, SyntaxError):
        why = "\n".join(lines[1:_SHOWN_LINES])
    if fix is None and (name := _not_found(error)):
        fix = f"install {name} where cgtool runs, {sys.prefix}, or run cgtool from its folder"
    elif isinstance(error, torch.OutOfMemoryError):
        fix = "use a smaller model or batch, or a device with more free memory"
    return user_code(
        message, frames=exception_frames(error) or otherwise, why=why, fix=fix, phase="load"
    )
