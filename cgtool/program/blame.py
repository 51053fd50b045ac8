"""Whose fault an exception is: the user's code's or cgtool's own.

cgtool's frames stand in every traceback: its modes run every op, and the user's callable runs
under it. So the innermost frame says little; what its instruction was doing does. Handing control
to an op, or to something of the user's, is no fault of ours; anything else is.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import torch

from cgtool.observe.frames import is_internal
from cgtool.program.guarded_access import text_of

_OWN = str(Path(__file__).parent.parent) + "/"
_MODES = ("__torch_function__", "__torch_dispatch__")
_OP = "func"
"""What the modes of this project call the op that they were handed."""
_USERS = frozenset((_OP, "function"))
_STATEFUL = tuple(
    f"{folder}/" for module in (torch.nn.modules, torch.optim) for folder in module.__path__
)
"""PyTorch's classes that the user's objects are of: what fails in them, fails for their state."""
_ANSWERS = ("torch.autograd.", "torch.cuda.")
_STORAGE = {
    "Cannot access storage of SparseCsr": "a compressed sparse tensor (CSR, CSC, BSR, BSC)",
    "Cannot access storage of Sparse": "a sparse tensor",
    "Cannot access storage of Nested": "a nested tensor",
    "Cannot access storage of Batched": "a tensor inside torch.vmap",
    "Cannot access storage of": "a tensor without a storage",
    "on an invalid python storage": "a tensor subclass that wraps others",
    "Cannot access data pointer": "a tensor that has no memory",
}
"""PyTorch's sentences for reading the memory of a tensor that has none of its own."""


def is_own(code: CodeType) -> bool:
    """True for cgtool's own functions."""
    return code.co_filename.startswith(_OWN)


def unreadable(error: BaseException) -> str | None:
    """``a sparse tensor``: what cgtool could not read the storage of, if that is the error."""
    text = text_of(error)
    return next((what for words, what in _STORAGE.items() if words in text), None)


def own_fault(error: BaseException) -> bool:
    """True when cgtool's code raised this where neither an op nor the user's code was running."""
    if not isinstance(error, Exception) or isinstance(error, MemoryError):
        return False
    if isinstance(error, torch.OutOfMemoryError) or "CUDA" in text_of(error)[:40]:
        # The device answers late, at whatever call comes next.
        return False
    entries = list(_entries(error.__traceback__))
    inner: FrameType | None = None
    """cgtool's frame that the frame at hand called, when nothing stands between."""
    while entries:
        frame, lasti = entries.pop()
        code = frame.f_code
        if not is_own(code):
            if not is_internal(code) or code.co_filename.startswith(_STATEFUL):
                return False
            inner = None
        elif inner is None or inner.f_code.co_name in _MODES:
            called = _called(code, lasti)
            if not (isinstance(called, ast.Name) and called.id == _OP):
                return not _hands_over(called, code) and not _stands_in(frame, entries)
            inner = frame
        else:
            inner = frame
    return False


def _entries(step: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while step is not None:
        yield step.tb_frame, step.tb_lasti
        step = step.tb_next


def _stands_in(frame: FrameType, outer: list[tuple[FrameType, int]]) -> bool:
    """True when the user's line called this: it takes the place of a function of PyTorch's, and
    raises where that would raise too."""
    while outer and is_own(outer[-1][0].f_code):
        frame, _ = outer.pop()
    is_called_by_user = bool(outer) and not is_internal(outer[-1][0].f_code)
    return is_called_by_user and frame.f_code.co_name not in _MODES


def _called(code: CodeType, lasti: int) -> ast.expr | None:
    """What the instruction calls, as it is written; None when it is no call."""
    line, end_line, start, end = next(islice(code.co_positions(), lasti // 2, None))
    if line is None or end_line is None or start is None or end is None:
        # Compiled without columns (python -X no_debug_ranges): nobody is accused.
        return ast.Name(_OP)
    rows = [linecache.getline(code.co_filename, one) for one in range(line, end_line + 1)]
    rows[-1] = rows[-1][:end]
    rows[0] = rows[0][start:]
    try:
        expression = ast.parse("".join(rows).strip(), mode="eval").body
    except SyntaxError:
        return None
    return expression.func if isinstance(expression, ast.Call) else None


def _hands_over(called: ast.expr | None, code: CodeType) -> bool:
    """True for a callable that a frame was given, for autograd, which runs the user's, and for
    the device, which answers for what ran before."""
    if isinstance(called, ast.Name):
        return called.id in code.co_varnames or called.id in code.co_freevars
    if isinstance(called, ast.Attribute):
        return called.attr in _USERS or ast.unparse(called).startswith(_ANSWERS)
    return False
