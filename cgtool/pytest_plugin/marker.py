"""``@pytest.mark.cudagraph``, and the arguments of ``cudagraph()`` and of what it returns.

A marker is read and checked before its test runs; after the test, its budgets must have been
judged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import NAMES, Budgets, nearest, read_budgets
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.options import CaptureOptions, VerifyOptions, unexpected
from cgtool.pytest_plugin.error_translation import failure_text


class Options(CaptureOptions, frozen=True, omit_defaults=True):
    """Every capture option, and what else a marker and ``cudagraph()`` take."""

    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds for each worker process."""
    requires_gpu: bool = False
    """An argument of the marker only."""

    @property
    def capture_options(self) -> CaptureOptions:
        """The capture options alone."""
        return CaptureOptions(
            **{name: getattr(self, name) for name in CaptureOptions.__struct_fields__}
        )


class GateArguments(msgspec.Struct, frozen=True):
    """Arguments of ``graph.gate()`` other than budgets."""

    baseline: bool
    max_runs: Annotated[int, msgspec.Meta(ge=1)]
    max_seconds: Annotated[float, msgspec.Meta(gt=0)]


class CheckArguments(msgspec.Struct, frozen=True):
    """Arguments of ``graph.check()``."""

    allow: str | tuple[str, ...]


T = TypeVar("T", Options, GateArguments, VerifyOptions, CheckArguments)

_OPTION_NAMES = [name for name in Options.__struct_fields__ if name != "requires_gpu"]
_BUDGET_NAMES = [*(name.replace("-", "_") for name in NAMES), "max_increase", "max_regression"]


# --- arguments


def options_of(arguments: Mapping[str, object], before: Options) -> Options:
    """``before``, overridden by the arguments of ``cudagraph()``. Raises CgtoolError (exit 2)."""
    where, budgets = "cudagraph()", (_BUDGET_NAMES, "budgets belong in graph.gate()")
    _check_names(where, arguments, _OPTION_NAMES, "option", budgets)
    return _overridden(where, arguments, before)


def of_marker(where: str, arguments: Mapping[str, object]) -> tuple[dict[str, object], Budgets]:
    """The options that a marker names, and its budgets. Raises CgtoolError (exit 2)."""
    _check_names(where, arguments, [*_BUDGET_NAMES, *Options.__struct_fields__], "budget or option")
    options = {
        name: value for name, value in arguments.items() if name in Options.__struct_fields__
    }
    _overridden(where, options, Options())
    limits = {name: value for name, value in arguments.items() if name not in options}
    return options, budgets_of(where, limits)


def _overridden(where: str, arguments: Mapping[str, object], before: Options) -> Options:
    if isinstance(arguments.get("input"), str):
        arguments = {**arguments, "input": (arguments["input"],)}
    for name in CaptureOptions.__struct_fields__:
        if name in arguments and (expected := unexpected(name, arguments[name])):
            raise usage(f"{where}: {name}={arguments[name]!r}: expected {expected}")
    options = typed(where, arguments, Options)
    return replace(before, **{name: getattr(options, name) for name in arguments})


def typed(where: str, arguments: Mapping[str, object], kind: type[T]) -> T:
    """Arguments as a struct. Raises CgtoolError (exit 2) for a value of the wrong type."""
    try:
        return msgspec.convert(dict(arguments), kind)
    except msgspec.ValidationError as error:
        raise usage(f"{where}: {error}".replace("`$.", "`")) from None


def _check_names(
    where: str,
    names: Iterable[str],
    known: list[str],
    kind: str,
    other: tuple[list[str], str] | None = None,
) -> None:
    """Raises CgtoolError (exit 2) for an unknown name. ``other`` are names that belong elsewhere,
    and the fix that says where."""
    for name in names:
        if name in known:
            continue
        if other is not None and name in other[0]:
            article = "an" if kind == "option" else "a"
            raise usage(f"{where}: {name} is not {article} {kind}", fix=other[1])
        near = nearest(name, known)
        all_names = None if near else f"one of {', '.join(known)}"
        raise usage(f"{where}: no {kind} {name!r}{near}", fix=all_names)


def budgets_of(where: str, arguments: Mapping[str, object]) -> Budgets:
    """Budgets by the names of ``cgtool gate``: ``max_nodes=400``, ``max_nodes={"backward": 300}``,
    ``max_increase={"nodes": "2%"}``, ``max_regression="3%"``. Raises CgtoolError (exit 2)."""
    _check_names(
        where, arguments, _BUDGET_NAMES, "budget", (_OPTION_NAMES, "options belong in cudagraph()")
    )
    increases = arguments.get("max_increase", {})
    if not isinstance(increases, Mapping):
        raise usage(
            f"{where} max_increase: {increases!r} does not name a metric", fix='{"nodes": "2%"}'
        )
    # Metrics are named as in Python, or as in options.
    tolerances = {str(name).replace("_", "-"): amount for name, amount in increases.items()}
    given = {**arguments, "max_increase": tolerances}
    return read_budgets(
        ((name.replace("_", "-"), value) for name, value in given.items()),
        lambda name: f"{where} {name.replace('-', '_')}",
        joint=" ",
    )


# --- the markers of a test


class Marked(NamedTuple):
    """The markers of a test together: the closest overrides the others."""

    options: Options
    budgets: Budgets


MARKED = pytest.StashKey[Marked]()
GATED = pytest.StashKey[bool]()
"""Set when a gate of the test has judged its budgets."""
_NO_GPU = pytest.StashKey[str | None]()


def read(item: pytest.Item) -> Marked:
    """Raises CgtoolError (exit 2) for a marker that is wrong, or contradicts another."""
    arguments: dict[str, object] = {}
    budgets = Budgets()
    where = f"@pytest.mark.cudagraph of {item.name}"
    for marker in item.iter_markers("cudagraph"):
        if marker.args:
            raise usage(
                f"{where}: {marker.args[0]!r} has no name",
                fix="write @pytest.mark.cudagraph(max_nodes=400); the entry belongs in "
                "cudagraph(...)",
            )
        options, limits = of_marker(where, marker.kwargs)
        arguments = {**options, **arguments}
        budgets = budgets.over(limits)
    together = _overridden(where, arguments, Options())
    if together.requires_gpu and together.device == "simulated":
        raise usage(f"{where}: requires_gpu, and device='simulated'", fix="leave one of them out")
    return Marked(together, budgets)


def prepare(item: pytest.Item) -> None:
    """Fail for a marker that is wrong, skip for a GPU that is not there."""
    try:
        marked = item.stash[MARKED] = read(item)
        if "cudagraph" not in getattr(item, "fixturenames", ()):
            raise usage(
                f"@pytest.mark.cudagraph of {item.name}: the test does not use the fixture",
                fix="give it the parameter `cudagraph`",
            )
    except CgtoolError as error:
        raise pytest.fail.Exception(failure_text(error.failure), pytrace=False) from None
    reason = _no_gpu_for(item.config) if marked.options.requires_gpu else None
    if reason is not None:
        # pytest's own setup comes after this one, and reports a marker's skip at the test's line.
        item.add_marker(pytest.mark.skip(reason=f"requires a GPU: {reason}"))


def _no_gpu_for(config: pytest.Config) -> str | None:
    device = config.getoption("cudagraph_device")
    if device == "simulated":
        return "--cudagraph-device simulated was given"
    # With --cudagraph-device cuda the capture fails if there is no GPU.
    return None if device is not None else why_no_gpu(config)


def why_no_gpu(config: pytest.Config) -> str | None:
    """None if there is one; found out once."""
    if _NO_GPU not in config.stash:
        config.stash[_NO_GPU] = _why_no_gpu()
    return config.stash[_NO_GPU]


_WHY_NO_GPU = """
import json
from cgtool.jobs.dispatch import why_no_gpu
print(json.dumps(why_no_gpu()))
"""


def _why_no_gpu() -> str | None:
    """Why there is no GPU; None if there is one. Uses its own process, because it imports torch."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WHY_NO_GPU], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["torch cannot be imported"])[-1]
    reason: str | None = json.loads(done.stdout.splitlines()[-1])
    return reason


def check_judged(item: pytest.Item) -> None:
    """Fail a test that has passed and whose marked budgets were not judged."""
    marked = item.stash.get(MARKED, None)
    budgets = marked.budgets if marked is not None else Budgets()
    if (budgets.limits or budgets.increases) and not item.stash.get(GATED, False):
        pytest.fail(
            f"the budgets of @pytest.mark.cudagraph were not judged: {item.name} calls no "
            "graph.gate()\n  fix: call graph.gate() on what cudagraph(...) returns",
            pytrace=False,
        )
