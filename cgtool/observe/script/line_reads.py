"""Which lines of a script read a place: an attribute, an item, or a name that functions share.

Lines are traced where the source of a function reads a place of that name. Which object that is, is
looked up when the line is about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from cgtool.model.capture import Frame
from cgtool.observe.frames import locals_of
from cgtool.observe.host_reads import Watched
from cgtool.observe.lookup import MISSING, all_of
from cgtool.observe.uses import Step, Use, uses_of

_Candidates = dict[int, list[tuple[Use, Watched]]]
"""By line of a function: the names that may be a watched place."""


class LineReads:
    """Calls ``on_read`` when a line is about to read one of the places. Follows the lines of a
    ``LineTrace``."""

    def __init__(self, on_read: Callable[[Watched, Use, Frame], None]) -> None:
        self._on_read = on_read
        self._places: list[Watched] = []
        self._skipped: set[int] = set()
        """Ids of the functions whose reads do not count."""
        self._blocks: list[tuple[CodeType, tuple[int, int]]] = []
        """Parts of functions whose reads do not count."""
        self._candidates: dict[int, tuple[CodeType, _Candidates]] = {}

    def add(
        self,
        places: Iterable[Watched],
        functions: Iterable[CodeType],
        block: tuple[CodeType, tuple[int, int]] | None,
    ) -> None:
        """Watch more places, which these functions, and these lines of one, may read."""
        self._places += places
        self._skipped.update(map(id, functions))
        self._blocks += [block] if block else []
        self._candidates.clear()

    def follows(self, code: CodeType) -> bool:
        return bool(self._candidates_in(code))

    def on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        candidates = self._candidates_in(code).get(frame.f_lineno, ()) if event == "line" else ()
        if not candidates:
            return
        names = locals_of(frame)
        for use, place in candidates:
            if _is_place(use, names, frame, place):
                self._on_read(place, use, Frame(code.co_filename, use.line, code.co_qualname))

    def _candidates_in(self, code: CodeType) -> _Candidates:
        known = self._candidates.get(id(code))
        if known is None:
            known = self._candidates[id(code)] = code, self._read_candidates(code)
        return known[1]

    def _read_candidates(self, code: CodeType) -> _Candidates:
        candidates: _Candidates = {}
        if id(code) in self._skipped:
            return candidates
        uses = (*uses_of(code), *uses_of(code, "local"))
        written = {(use.line, use.text) for use in uses if use.written}
        inside = [lines for each, lines in self._blocks if each is code]
        for use in uses:
            if (use.line, use.text) in written or any(a <= use.line <= b for a, b in inside):
                continue
            for place in self._places:
                last = _last(use)
                if last == _last(place.use) or (
                    last[0] == "item" and _last(place.use)[0] == "each"
                ):
                    candidates.setdefault(use.line, []).append((use, place))
        return candidates


def _last(use: Use) -> Step:
    return use.steps[-1] if use.steps else ("name", use.root)


def _is_place(use: Use, names: dict[str, Any], frame: FrameType, place: Watched) -> bool:
    """Whether a name in a running function with these locals is the place."""
    if use.steps:
        value = names.get(use.root, frame.f_globals.get(use.root, MISSING))
        holders = all_of(place.root(), place.use.steps[:-1])
        return any(holder is each for holder in all_of(value, use.steps[:-1]) for each in holders)
    if place.owner == id(frame) or place.owner == id(frame.f_globals):
        return place.owner == id(frame) or use.scope == "global"
    code = frame.f_code
    outer = place.frame.function.rpartition(".<locals>.")[0]
    is_shared = use.root in code.co_cellvars or use.root in code.co_freevars
    return is_shared and place.frame.file == code.co_filename and code.co_qualname.startswith(outer)
