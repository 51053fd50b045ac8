"""How a suspended generator or coroutine goes on.

It is read from its bytecode: a line does not say at which of its ``yield``s it is.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

_NAMED = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|DEREF|CLOSURE|CLASSDEREF)")
"""In the name of an instruction, which may do two such things."""
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS")


def names_assigned_later(frame: FrameType) -> frozenset[str]:
    """The names that the code may assign before it ends."""
    return _names(frame.f_code, frame.f_lasti)[1]


def names_read_later(frame: FrameType) -> frozenset[str]:
    """The names whose present values the code may read before it ends."""
    return _names(frame.f_code, frame.f_lasti)[0]


@lru_cache(maxsize=4096)
def _names(code: CodeType, offset: int) -> tuple[frozenset[str], frozenset[str]]:
    """The names that are read before they are assigned from where the code is suspended, and the
    names that are assigned."""
    instructions = list(dis.get_instructions(code))
    numbers = {each.offset: number for number, each in enumerate(instructions)}
    # A frame is at the `yield`, or after it in newer Pythons.
    now = numbers.get(offset, 0)
    start = now - (now > 0 and instructions[now - 1].opname == "YIELD_VALUE")
    read, stored = set[str](), set[str]()
    handlers = getattr(dis.Bytecode(code), "exception_entries", ())
    known: dict[int, frozenset[str]] = {}
    waiting = [(start + 1, frozenset[str]())]
    while waiting:
        number, assigned = waiting.pop()
        if number in known and known[number] <= assigned:
            continue
        known[number] = assigned = assigned & known.get(number, assigned)
        instruction, after = instructions[number], assigned
        for does, name in _variables_in(instruction):
            if does == "LOAD":
                read |= {name} - after
            else:
                stored.add(name)
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
    return frozenset(read), frozenset(stored)


def _variables_in(instruction: dis.Instruction) -> Iterator[tuple[str, str]]:
    """What an instruction does with which local names, in order."""
    names = instruction.argval
    yield from zip(
        _NAMED.findall(instruction.opname),
        names if isinstance(names, tuple) else (names,),
        strict=False,
    )
