"""Statements that replay a graph more than once, and use more than one of the results."""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

import torch

from cgtool.model.capture import Frame
from cgtool.observe.expressions import (
    Collection,
    collection_at,
    gathered_in,
    has_operand,
    returned_at,
    takes_both,
)
from cgtool.observe.frames import line_of, locals_of, names_in_expression, position_of
from cgtool.observe.script.names import Stack, parts_of
from cgtool.observe.source import COMPREHENSIONS, called_at, statement_start
from cgtool.observe.tensors import key_of, tensors_in

Site = tuple[int, CodeType, int]
"""A frame that runs: its identity, its code, and the instruction that it has come to."""


def sites_of(stack: Stack) -> list[Site]:
    return [(number, frame.f_code, frame.f_lasti) for number, frame in stack.items()]


def frame_at(code: CodeType, offset: int) -> Frame:
    return Frame(code.co_filename, line_of((code, offset)), code.co_qualname)


def statement_at(code: CodeType, offset: int) -> Frame:
    """The first line of the statement that an instruction is in."""
    return statement_of(frame_at(code, offset))


def statement_of(at: Frame) -> Frame:
    """The first line of the statement at a line."""
    return Frame(at.file, statement_start(at.file, at.line), at.function)


@dataclass(frozen=True)
class TwoReplays:
    """The calls that led to the last two replays of a graph, innermost first, and a later read of
    its result."""

    before: list[Site]
    last: list[Site]
    stack: Stack
    """What reads it."""
    tensor: torch.Tensor
    is_compared: bool
    """An op takes it twice."""

    def statement(self, are_bound: Callable[[CodeType, int], bool]) -> Frame | None:
        """The statement that has replayed the graph twice and uses both results: ``torch.dist(
        run(x), run(y))``, or binds both: ``a, b = run(x), run(y)``. ``are_bound``: whether a
        statement, of a function and at a line, has bound both."""
        for number, code, was, offset in self._in_one_statement():
            at, frame = statement_at(code, offset), self.stack.get(number)
            if frame is not None and (
                self._is_used_twice(frame, was, offset) or are_bound(code, at.line)
            ):
                return at
        return self._that_collects()

    def _in_one_statement(self) -> Iterator[tuple[int, CodeType, int, int]]:
        """The frames in which one execution of a statement has led to both replays, and the
        instructions that did."""
        for number, code, was, offset in self._in_one_frame():
            is_unpacking = dis.opname[code.co_code[offset]].startswith("UNPACK_")
            is_one = statement_at(code, was) == statement_at(code, offset)
            if is_one and (was != offset or is_unpacking):
                yield number, code, was, offset

    def _in_one_frame(self) -> Iterator[tuple[int, CodeType, int, int]]:
        known = {number: (code, offset) for number, code, offset in self.before}
        for number, code, offset in self.last:
            was_code, was = known.get(number, (None, 0))
            if was_code is code and offset >= 0:
                yield number, code, was, offset

    def _is_used_twice(self, frame: FrameType, was: int, offset: int) -> bool:
        """Whether the expression that runs in a frame takes the results of both calls."""
        code, now = frame.f_code, frame.f_lasti
        if now == offset:
            return False  # It is the second call itself.
        if self.is_compared and statement_at(code, now) == statement_at(code, offset):
            return True
        operation = position_of((code, now))
        taken = takes_both(operation, position_of((code, was)), position_of((code, offset)))
        callee = self._called_by(frame)
        # A function of PyTorch, or one that was passed to Python's own: `max(..., key=...)`.
        is_foreign = callee is None or (
            (name := called_at(operation)) in vars(builtins) and name not in frame.f_globals
        )
        is_taken = not self._is_named_in(frame) if is_foreign else self._count_in(callee) >= taken
        return taken > 0 and is_taken

    def _called_by(self, frame: FrameType) -> FrameType | None:
        """The frame of the function that a frame has called; None if it is not of the user."""
        inner: FrameType | None = None
        for each in self.stack.values():
            if each is frame:
                return inner
            inner = each
        return None

    def _is_named_in(self, frame: FrameType) -> bool:
        """Whether the expression that runs in a frame reads this result by a name."""
        names = names_in_expression(frame.f_code, frame.f_lasti)
        values = {**frame.f_globals, **locals_of(frame)}
        named = [values.get(name) for name in names.local | names.shared]
        parts = [part for name in names.parts for part in _attributes_of(named, name)]
        return any(map(self._is_it, (*named, *parts)))

    def _count_in(self, frame: FrameType | None) -> int:
        """How many variables of a frame hold this result."""
        values = {} if frame is None else locals_of(frame)
        return sum(map(self._is_it, tensors_in(tuple(values.values()))))

    def _is_it(self, value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and key_of(value) == key_of(self.tensor)
            and value.data_ptr() == self.tensor.data_ptr()
            and value.shape == self.tensor.shape
        )

    def _that_collects(self) -> Frame | None:
        """The statement that has all results at once before it uses them: ``max(map(run, xs),
        key=...)``."""
        calls = [(code, offset) for _, code, was, offset in self._in_one_frame() if was == offset]
        for number, (code, offset) in enumerate(calls):
            collection = collection_at(position_of((code, offset)))
            outer = [each for each in calls[number:] if each[0].co_name not in COMPREHENSIONS]
            while collection is not None:
                if any(self._is_of(collection, frame) for frame in self.stack.values()):
                    return statement_at(code, offset)
                outer = outer[1:]
                is_returned = collection.is_returned and outer
                collection = returned_at(position_of(outer[0]), collection) if is_returned else None
        for frame in self.stack.values():
            code, now = frame.f_code, line_of((frame.f_code, frame.f_lasti))
            for each in gathered_in(code.co_filename):
                line = each.position[1]
                if code.co_firstlineno <= line <= now and self._is_of(each, frame):
                    return statement_of(Frame(code.co_filename, line, code.co_qualname))
        return None

    def _is_of(self, collection: Collection, frame: FrameType) -> bool:
        """Whether the expression that runs in a frame reads what was collected."""
        now = position_of((frame.f_code, frame.f_lasti))
        if now[0] != collection.position[0]:
            return False
        if collection.folds and now == collection.position:
            callee = self._called_by(frame)
            return self.is_compared if callee is None else self._count_in(callee) > 1
        if collection.picks and has_operand(now, collection.position):
            return not self._is_named_in(frame)
        first, last = collection.lines
        if not first <= now[1] <= last:
            return False
        names = names_in_expression(frame.f_code, frame.f_lasti)
        values = {**frame.f_globals, **locals_of(frame)}
        owners = [values.get(name) for name in names.local | names.shared]
        bound = [
            name
            for name in collection.names
            if self._is_it(values.get(name))
            or (name[0] == "." and any(map(self._is_it, _attributes_of(owners, name[1:]))))
        ]
        read = names.local | names.shared | {f".{part}" for part in names.parts}
        return not read.isdisjoint(bound) and len(bound) > collection.is_unpacked


def _attributes_of(owners: list[object], name: str | int) -> list[object]:
    """What objects have as an attribute."""
    return [dict(parts_of(owner)).get(("attribute", name)) for owner in owners]
