"""What a test asks for: budgets and options, from its marker and from its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import (
    NAMES,
    Budget,
    Budgets,
    Increase,
    checked,
    increase_of,
    limits_of,
    nearest,
)
from cgtool.model.failure import usage
from cgtool.model.options import CaptureOptions, unexpected


class Options(CaptureOptions, frozen=True, omit_defaults=True):
    """Every capture option, and what else a marker and ``cudagraph()`` take."""

    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds for each worker process."""
    requires_gpu: bool = False
    """Of the marker only."""

    @property
    def capture(self) -> CaptureOptions:
        return CaptureOptions(
            **{name: getattr(self, name) for name in CaptureOptions.__struct_fields__}
        )


class Gating(msgspec.Struct, frozen=True):
    """What ``graph.gate()`` takes beside budgets."""

    baseline: bool
    max_runs: Annotated[int, msgspec.Meta(ge=1)]
    max_seconds: Annotated[float, msgspec.Meta(gt=0)]


class Proving(msgspec.Struct, frozen=True):
    """What ``graph.verify()`` takes."""

    replays: Annotated[int, msgspec.Meta(ge=1)]
    trials: Annotated[int, msgspec.Meta(ge=0)]


class Allowing(msgspec.Struct, frozen=True):
    """What ``graph.check()`` takes."""

    allow: str | tuple[str, ...]


T = TypeVar("T", Options, Gating, Proving, Allowing)

_CALL = [one for one in Options.__struct_fields__ if one != "requires_gpu"]
_BUDGETS = [*(one.replace("-", "_") for one in NAMES), "max_increase", "max_regression"]


def options_of(where: str, given: Mapping[str, object], before: Options | None = None) -> Options:
    """``before`` with what is given put in its place. Raises CgtoolError (exit 2)."""
    _known(where, given, _CALL, "option", other=(_BUDGETS, "budgets belong into graph.gate()"))
    return _converted(where, given, before or Options())


def of_marker(where: str, given: Mapping[str, object]) -> tuple[dict[str, object], Budgets]:
    """The options that a marker names, and its budgets. Raises CgtoolError (exit 2)."""
    _known(where, given, [*_BUDGETS, *Options.__struct_fields__], "budget or option")
    options = {name: one for name, one in given.items() if name in Options.__struct_fields__}
    _converted(where, options, Options())
    limits = {name: one for name, one in given.items() if name not in options}
    return options, budgets_of(where, limits)


def marked_options(where: str, given: Mapping[str, object]) -> Options:
    """Options of markers, put together. Raises CgtoolError (exit 2) where they contradict."""
    found = _converted(where, given, Options())
    if found.requires_gpu and found.device == "simulated":
        raise usage(f"{where}: requires_gpu, and device='simulated'", fix="leave one of them out")
    return found


def _converted(where: str, given: Mapping[str, object], before: Options) -> Options:
    if isinstance(given.get("input"), str):
        given = {**given, "input": (given["input"],)}
    for name in CaptureOptions.__struct_fields__:
        if name in given and (expected := unexpected(name, given[name])):
            raise usage(f"{where}: {name}={given[name]!r}: expected {expected}")
    made = typed(where, given, Options)
    return replace(before, **{name: getattr(made, name) for name in given})


def typed(where: str, given: Mapping[str, object], kind: type[T]) -> T:
    """Arguments as they should be. Raises CgtoolError (exit 2) for one that is not."""
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise usage(f"{where}: {error}".replace("`$.", "`")) from None


def _known(
    where: str,
    given: Iterable[str],
    known: list[str],
    kind: str,
    other: tuple[list[str], str] | None = None,
) -> None:
    for name in given:
        if name in known:
            continue
        if other is not None and name in other[0]:
            raise usage(f"{where}: {name} is no {kind}", fix=other[1])
        near = nearest(name, known)
        all_of_them = None if near else f"one of {', '.join(known)}"
        raise usage(f"{where}: no {kind} {name!r}{near}", fix=all_of_them)


def budgets_of(where: str, given: Mapping[str, object]) -> Budgets:
    """Budgets by the names of ``cgtool gate``: ``max_nodes=400``, ``max_nodes={"backward": 300}``,
    ``max_increase={"nodes": "2%"}``, ``max_regression="3%"``. Raises CgtoolError (exit 2)."""
    _known(where, given, _BUDGETS, "budget", other=(_CALL, "options belong into cudagraph()"))
    limits: list[Budget] = []
    increases: list[Increase] = []
    for name, value in given.items():
        source = f"{where} {name}"
        if name == "max_regression":
            increases.append(increase_of(source, "replay-us", str(value)))
        elif name == "max_increase":
            if not isinstance(value, Mapping):
                raise usage(f"{source}: {value!r} does not say of what", fix='{"nodes": "2%"}')
            increases += [
                # As Python spells names, or as options do.
                increase_of(source, str(metric).replace("_", "-"), str(one))
                for metric, one in value.items()
            ]
        else:
            limits += limits_of(source, name.replace("_", "-"), value, joint=" ")
    return checked(Budgets(tuple(limits), tuple(increases)))
