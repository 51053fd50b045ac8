"""How a suspended generator or coroutine goes on.

It is read from its bytecode: a line does not say at which of its ``yield``s it is.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType

_NAMED = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|DEREF|CLOSURE|CLASSDEREF)")
"""In the name of an instruction, which may do two such things."""
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS")


@dataclass
class _Path:
    """What the code does from where it is suspended."""

    start: int
    """Where it is suspended."""
    read: set[str] = field(default_factory=set)
    """Names whose present values it may read."""
    assigned: set[str] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    """Where it may be suspended next."""


def names_assigned_later(frame: FrameType) -> set[str]:
    """The names that the code may assign before it ends."""
    return _path(frame.f_code, frame.f_lasti, to_the_end=True).assigned


def names_read_later(frame: FrameType) -> set[str]:
    """The names whose present values the code may read before it ends."""
    return _path(frame.f_code, frame.f_lasti, to_the_end=True).read


@lru_cache(maxsize=4096)
def _path(code: CodeType, offset: int, *, to_the_end: bool = False) -> _Path:
    instructions = list(dis.get_instructions(code))
    numbers = {each.offset: number for number, each in enumerate(instructions)}
    yields = [n for n, each in enumerate(instructions) if each.opname == "YIELD_VALUE"]
    # A frame is at the `yield`, or after it in newer Pythons.
    now = numbers.get(offset, 0)
    path = _Path(now - 1 if now - 1 in yields else now)
    handlers = getattr(dis.Bytecode(code), "exception_entries", ())
    known: dict[int, frozenset[str]] = {}
    waiting = [(path.start + 1, frozenset[str]())]
    while waiting:
        number, assigned = waiting.pop()
        if number in known and known[number] <= assigned:
            continue
        known[number] = assigned = assigned & known.get(number, assigned)
        instruction = instructions[number]
        if number in yields:
            path.ends.add(number)
            if not to_the_end:
                continue
        after = assigned
        for does, name in variables_in(instruction):
            if does == "LOAD":
                path.read |= {name} - after
            else:
                path.assigned.add(name)
                after = after | {name}
        if instruction.opcode in _JUMPS:
            waiting.append((numbers[instruction.argval], after))
        is_jump = instruction.opname.startswith("JUMP_")
        if not is_jump and instruction.opname not in _ENDS and number + 1 < len(instructions):
            waiting.append((number + 1, after))
        waiting += (
            (numbers[handler.target], assigned)
            for handler in handlers
            if handler.start <= instruction.offset < handler.end
        )
    return path


def variables_in(instruction: dis.Instruction) -> Iterator[tuple[str, str]]:
    """What an instruction does with which local names, in order."""
    names = instruction.argval
    yield from zip(
        _NAMED.findall(instruction.opname),
        names if isinstance(names, tuple) else (names,),
        strict=False,
    )
