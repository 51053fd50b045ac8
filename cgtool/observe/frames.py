"""Python frames: which are the user's, and how to name them.

A frame is kept as ``(code, lasti)`` while recording, because reading a line number costs more
than the op that is being recorded; lines are looked up afterwards, once for each pair.
"""

from __future__ import annotations

import ctypes
import dis
import importlib.util
import itertools
import re
import sys
import sysconfig
import traceback
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    GeneratorType,
    TracebackType,
)
from typing import Any, TypeVar

from cgtool.model.capture import Frame, Frames
from cgtool.model.collector import CollectorPaused
from cgtool.model.notebook import named_by_cell

Result = TypeVar("Result")


def call_user(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Call something of the user's: whatever is raised beyond this frame is the user's.

    ``cgtool.program.boundary.own_fault`` looks for this frame in a traceback.
    """
    return function(*args, **kwargs)


def call_op(func: Any, args: Any, kwargs: Any) -> Any:
    """Run the op that a mode intercepted: what it raises belongs to whoever called the op."""
    return func(*args, **kwargs)


Site = tuple[CodeType, int]
"""Code object and offset of the last instruction."""
Chain = tuple[Site, ...]
"""Sites that called each other, innermost first."""

_NB_SUBSCR = 26
MAX_CHAIN = 24
"""Frames kept of one call chain; the innermost are kept."""
_LONGEST_CYCLE = 8
"""Functions that call each other in a recursion that is folded."""
_SHOWN_ROUNDS = 2


@cache
def _packages() -> tuple[tuple[str, str], ...]:
    """(name, folder with a slash at its end) of the packages that are not the user's."""
    package = Path(__file__).parent.parent
    # Both spellings: code objects keep the path that was imported, through links or not.
    packages = [("cgtool", str(package)), ("cgtool", str(package.resolve()))]
    # Triton's launcher is between a kernel and the line that launches it, as torch is.
    for name in ("torch", "triton"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            packages.append((name, str(Path(spec.origin).parent)))
    return tuple((name, folder.rstrip("/") + "/") for name, folder in packages)


@cache
def _roots() -> tuple[str, ...]:
    library = {sysconfig.get_path(name).rstrip("/") + "/" for name in ("stdlib", "platstdlib")}
    return (*(folder for _, folder in _packages()), *library)


@cache
def package_part(file: str) -> str:
    """``/torch/optim/sgd.py`` for a file of PyTorch's, wherever it is installed; likewise for
    Triton and cgtool. Empty for all others, whatever their folders are called."""
    for name, folder in _packages():
        if file.startswith(folder):
            return f"/{name}/{file[len(folder) :]}"
    return ""


def is_generated(file: str) -> bool:
    """True for a file of code that Inductor generated, wherever its cache is: named by a hash."""
    return _GENERATED.search(file) is not None


_GENERATED = re.compile(r"/c[a-z2-7]{51}\.py$")


@cache
def is_internal_file(name: str) -> bool:
    """True for files of torch, of the standard library and of cgtool, and for none at all."""
    if name.startswith("<") or is_generated(name):
        # Frozen modules, and text made at run time (dataclasses, torch.fx, Inductor): no line to
        # show. The frame that ran it follows further out.
        return True
    if "/site-packages/" in name or "/dist-packages/" in name:
        # site-packages lies inside the standard library's folder: only torch is internal there.
        return any(name.startswith(root) for root in _roots() if "-packages/" in root)
    return any(name.startswith(root) for root in _roots())


def in_library(frame: Frame) -> bool:
    """True for a line of an installed package, which the user does not edit."""
    return "-packages/" in frame.file


def is_internal(code: CodeType) -> bool:
    """True for frames of torch, of the standard library and of cgtool.

    Installed libraries (transformers, timm) are not internal: their line is where the op is
    written, and the user's own line follows further out in the chain.
    """
    # By file name: hashing a code object hashes its whole bytecode, and two different functions
    # with the same text are equal.
    return is_internal_file(code.co_filename)


def chain_of(frame: FrameType | None) -> Chain:
    """The frames outside torch from ``frame`` outward, innermost first."""
    if _chain_in_cpp is not None:
        chain = _chain_in_cpp(frame, _is_internal, MAX_CHAIN)
        if chain is not None:
            return chain
    return tuple(sites_until(frame, None)[0])


ChainInCpp = Callable[[FrameType | None, dict[str, bool], int], Chain | None]
"""``chain_of`` in C++: whether files are internal, and the most frames. None for a file that is not
in the dict."""


def look_up_chains_in_cpp(chain_in_cpp: ChainInCpp | None) -> None:
    """Have ``chain_of`` look up chains there first; None: no longer."""
    global _chain_in_cpp
    _chain_in_cpp = chain_in_cpp


_chain_in_cpp: ChainInCpp | None = None


def sites_until(
    frame: FrameType | None, last: FrameType | None
) -> tuple[list[Site], FrameType | None]:
    """The frames outside torch from ``frame`` outward, innermost first, before ``last`` is reached;
    and where that ended: None for the outermost frame, or after as many as are kept."""
    chain: list[Site] = []
    known = _is_internal
    while frame is not last and frame is not None:
        code = frame.f_code
        file = code.co_filename
        internal = known.get(file)
        if internal is None:
            internal = known[file] = is_internal_file(file)
        if not internal:
            chain.append((code, frame.f_lasti))
            if len(chain) == MAX_CHAIN:
                return chain, None
        frame = frame.f_back
    return chain, frame


def locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy, after which the frame holds no more than it did.

    In CPython before 3.13 ``f_locals`` of a function is a dict that stays with the frame, and would
    keep alive what the function deletes.
    """
    table = frame.f_locals
    copy = dict(table)
    if type(table) is dict and frame.f_code.co_flags & 1 and table is not frame.f_globals:
        references = sys.getrefcount(table)
        _release(frame, table, references)
    return copy


def set_locals(frame: FrameType, values: dict[str, Any]) -> None:
    """Assign local names of a frame that is not running."""
    table = frame.f_locals
    table.update(values)
    if type(table) is dict:
        references = sys.getrefcount(table)
        _assign(frame)
        _release(frame, table, references)


_HOLDERS = 3
"""References to a dict that nobody but its frame has: the frame, the function that asks for it, and
the argument of ``getrefcount``."""


def _release(frame: FrameType, table: dict[str, Any], references: int) -> None:
    """Empty the dict of a frame, unless the program has it too: from ``locals()``, or in ``eval``.
    The caller counts the references: a call of Python's has one more where Dynamo evaluates frames.

    Where the frame is traced, CPython would fill it again, and not release what the function
    deletes later.
    """
    if references <= _HOLDERS:
        table.clear()
    _assign(frame)


def _assign(frame: FrameType) -> None:
    """Have the names of a frame be what its dict says; those that it lacks stay as they are.
    CPython before 3.13 does this after each call of a trace function."""
    _locals_to_fast()(frame, 0)


@cache
def _locals_to_fast() -> Callable[[FrameType, int], None]:
    function = ctypes.pythonapi["PyFrame_LocalsToFast"]  # not the one that others may use
    function.argtypes, function.restype = (ctypes.py_object, ctypes.c_int), None
    return function


SUSPENDED = GeneratorType, CoroutineType, AsyncGeneratorType
"""Types of objects that keep a frame between two calls."""


def suspended_frame(value: Any) -> FrameType | None:
    """The frame that a generator or coroutine keeps; None if it has ended."""
    names = (f"{prefix}_frame" for prefix in ("gi", "cr", "ag"))
    frame: FrameType | None = next(getattr(value, name) for name in names if hasattr(value, name))
    return frame


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def outermost_code(frame: FrameType) -> CodeType:
    """The code that the thread of a frame began with."""
    # A list of frames that holds that of its own function would be a cycle, which keeps what all of
    # its callers hold until the garbage collector runs.
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


def frames_of_other_threads() -> dict[int, FrameType]:
    """The innermost frame of each other thread, by the number of the thread.

    Without the garbage collector: if it runs while Python 3.11 lists the frames, it may wait for
    ever for a lock that is held there (python/cpython#106883).
    """
    with CollectorPaused():
        frames = sys._current_frames()
    # A frame in a local of its own is a cycle, which keeps alive what its callers hold.
    del frames[get_ident()]
    return frames


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame outside torch, the standard library and cgtool; None for none."""
    return next((each for each in callers(frame) if not is_internal(each.f_code)), None)


def caller_of_cgtool(frame: FrameType | None) -> CodeType | None:
    """The code of the innermost frame that is not cgtool's; None for none."""
    for each in callers(frame):
        if not package_part(each.f_code.co_filename).startswith("/cgtool/"):
            return each.f_code
    return None


class Chains:
    """Chains of frames, each once: two that are equal are the same tuple."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Chain] = {}
        """By the innermost site and the id of the chain outside it, both of which are kept."""

    def extended(self, sites: Iterable[Site], outer: Chain) -> Chain:
        """``outer``, which is one of these chains, with these sites inside it, outermost first."""
        for site in sites:
            key = id(site[0]), site[1], id(outer)
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = (site, *outer)[:MAX_CHAIN]
            outer = known
        return outer


_is_internal: dict[str, bool] = {}
"""By file name: on the path of every op, where a function call for each frame counts."""


_line_tables: dict[int, tuple[CodeType, list[int]]] = {}


def _lines(code: CodeType) -> list[int]:
    known = _line_tables.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    lines = [code.co_firstlineno] * (len(code.co_code) // 2 + 1)
    for start, end, line in code.co_lines():
        if line is not None:
            lines[start // 2 : end // 2] = [line] * (end // 2 - start // 2)
    _line_tables[id(code)] = (code, lines)
    return lines


SiteKey = tuple[int, int]
"""A site as a cheap dictionary key; valid while the code object lives."""


def key_of(site: Site) -> SiteKey:
    return id(site[0]), site[1]


def line_of(site: Site) -> int:
    """The source line of a site."""
    code, lasti = site
    lines = _lines(code)
    return lines[lasti // 2] if 0 <= lasti // 2 < len(lines) else code.co_firstlineno


def is_calling(site: Site) -> bool:
    """Whether a function is called there: `if x.any():` has the place of a call, and then asks for
    the truth of what that has returned."""
    code, offset = site
    # A frame that has called a function in Python is after the caches of the instruction.
    while offset and dis.opname[code.co_code[offset]] == "CACHE":
        offset -= 2
    return dis.opname[code.co_code[offset]].startswith(("CALL", "PRECALL"))


def position_of(site: Site) -> tuple[str, int, int, int, int]:
    """The file of a site, and first line and column, last line and column of its expression; zeros
    where Python runs with -X no_debug_ranges."""
    code, lasti = site
    known = _positions.get(id(code))
    if known is None or known[0] is not code:
        known = _positions[id(code)] = code, list(code.co_positions())
    line, end_line, start, end = known[1][lasti // 2] if lasti >= 0 else (0, 0, 0, 0)
    return code.co_filename, line or 0, start or 0, end_line or 0, end or 0


_positions: dict[int, tuple[CodeType, list[tuple[int | None, ...]]]] = {}


def frame_of(site: Site) -> Frame:
    """The site as plain data."""
    code = site[0]
    return Frame(named_by_cell(code.co_filename), line_of(site), code.co_qualname)


def frames_of(chain: Iterable[Site]) -> Frames:
    """The sites as plain data, in the same order."""
    return tuple(map(frame_of, chain))


class FrameTable:
    """``frames_of``, and each site is looked up once: where the program waits for it."""

    def __init__(self) -> None:
        self._known: dict[SiteKey, tuple[CodeType, Frame]] = {}

    def frames_of(self, chain: Iterable[Site]) -> Frames:
        known = self._known
        frames: list[Frame] = []
        for site in chain:
            key = id(site[0]), site[1]
            if key not in known:
                known[key] = site[0], frame_of(site)
            frames.append(known[key][1])
        return tuple(frames)


def columns_of(chain: Iterable[Site]) -> tuple[int, int] | None:
    """The expression that runs in the innermost site outside installed libraries, as UTF-8 offsets
    in its line: (start, end), with end 0 if it ends in a later line. None if unknown."""
    for code, lasti in chain:
        if in_library(frame_of((code, lasti))) or lasti < 0:
            continue
        position = next(itertools.islice(code.co_positions(), lasti // 2, None), None)
        if position is None:
            return None
        line, end_line, start, end = position
        if line is None or start is None or end is None:
            # Python runs with -X no_debug_ranges.
            return None
        return start, end if end_line == line else 0
    return None


def is_subscript(site: Site) -> bool:
    """Whether the instruction is ``x[...]``, read or written."""
    code, lasti = site
    if lasti < 0:
        return False
    name, argument = dis.opname[code.co_code[lasti]], code.co_code[lasti + 1]
    if name == "BINARY_OP":  # from Python 3.14 on
        return argument == _NB_SUBSCR
    return name.endswith(("_SUBSCR", "_SLICE"))


def here(depth: int = 1) -> Frames:
    """The frames outside torch and cgtool of the code that is running, innermost first."""
    return frames_of(chain_of(sys._getframe(depth)))


def user_frames(traceback_frames: Iterable[tuple[FrameType, int]]) -> Frames:
    """Frames of a traceback (``traceback.walk_tb``) outside torch and cgtool, innermost first."""
    kept = [
        Frame(named_by_cell(frame.f_code.co_filename), line, frame.f_code.co_qualname)
        for frame, line in traceback_frames
        if not is_internal(frame.f_code)
    ]
    kept.reverse()
    return folded(kept)[:MAX_CHAIN]


def folded(chain: list[Frame]) -> Frames:
    """The chain with the rounds of a recursion left out.

    They are replaced by a Frame without a file, whose function is the text to show.
    """
    shown_frames: list[Frame] = []
    at = 0
    while at < len(chain):
        period, rounds = _rounds(chain, at)
        shown = min(rounds, _SHOWN_ROUNDS) * period
        shown_frames += chain[at : at + shown]
        if rounds > _SHOWN_ROUNDS:
            left = (rounds - _SHOWN_ROUNDS) * period
            repeated = "this" if period == 1 else f"these {period}"
            shown_frames.append(Frame("", 0, f"... {left} more frames of {repeated}"))
        at += rounds * period
    return tuple(shown_frames)


def _rounds(chain: list[Frame], at: int) -> tuple[int, int]:
    """Length and count of the shortest cycle that repeats from here; (1, 1) for none."""
    for period in range(1, _LONGEST_CYCLE + 1):
        first = chain[at : at + period]
        rounds = 1
        while chain[at + rounds * period : at + (rounds + 1) * period] == first:
            rounds += 1
        if rounds > _SHOWN_ROUNDS:
            return period, rounds
    return 1, 1


def without_own_frames(raised: TracebackType | None) -> TracebackType | None:
    """A traceback as it would be without cgtool."""
    if raised is None:
        return None
    inner, frame = without_own_frames(raised.tb_next), raised.tb_frame
    if package_part(frame.f_code.co_filename).startswith("/cgtool/"):
        return inner
    return TracebackType(inner, frame, raised.tb_lasti, raised.tb_lineno)


def exception_frames(error: BaseException) -> Frames:
    """The user's frames of an exception, innermost first; a SyntaxError names its own line."""
    frames = user_frames(traceback.walk_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename and error.filename[0] != "<":
        place = Frame(error.filename, error.lineno or 0, "<module>")
        return (place, *frames)
    return frames
