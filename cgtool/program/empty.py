"""Why a graph may be empty: what was captured was never given anything to work on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from cgtool.model.failure import CgtoolError
from cgtool.program.guarded_access import short, type_name
from cgtool.program.reach import reach
from cgtool.program.surface import inputs_of
from cgtool.program.workload import Part, Workload

_EMPTY = "the graph is empty"
_SHOWN = 3


def _holds_a_tensor(part: Part) -> bool:
    reached = reach(part.function)
    return bool(inputs_of(part) or part.modules or reached.modules or reached.tensors)


def _given(part: Part) -> str:
    values = [*part.args, *part.kwargs.values()]
    if not values:
        return "no arguments"
    shown = ", ".join(f"{short(one)} ({type_name(one)})" for one in values[:_SHOWN])
    return f"only {shown}" + (" and more" if values[_SHOWN:] else "")


@contextlib.contextmanager
def explained(workload: Workload) -> Iterator[None]:
    """An empty graph of callables that hold no tensor at all is told apart from one whose
    callables do, and compute nothing."""
    try:
        yield
    except CgtoolError as error:
        failure = error.failure
        if _EMPTY not in failure.what:
            raise
        part = workload.parts[0]
        failure = msgspec.structs.replace(failure, frames=failure.frames or part.frames)
        if not any(map(_holds_a_tensor, workload.parts)):
            failure = msgspec.structs.replace(
                failure,
                why="no argument is a tensor, and no op launched work: "
                f"{part.name} is given {_given(part)}",
                fix="give it the tensors that it works on, on the device that the factory is given",
            )
        raise CgtoolError(failure) from None
