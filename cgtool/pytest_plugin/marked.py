"""``@pytest.mark.cudagraph``: read and checked before the test runs, and held after it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from cgtool.analysis.gate.budgets import Budgets
from cgtool.model.failure import CgtoolError, usage
from cgtool.pytest_plugin.error_translation import told
from cgtool.pytest_plugin.marker_options import Options, marked_options, of_marker

_NO_GPU = pytest.StashKey[str | None]()


class Marked(NamedTuple):
    """What the markers of a test say together: the closest goes first."""

    options: Options
    budgets: Budgets


MARKED = pytest.StashKey[Marked]()
GATED = pytest.StashKey[bool]()
"""Set when a gate of the test has held its budgets."""


def read(item: pytest.Item) -> Marked:
    """Raises CgtoolError (exit 2) for a marker that says what none can."""
    options: dict[str, object] = {}
    budgets = Budgets()
    where = f"@pytest.mark.cudagraph of {item.name}"
    for marker in item.iter_markers("cudagraph"):
        if marker.args:
            raise usage(
                f"{where}: {marker.args[0]!r} has no name",
                fix="write @pytest.mark.cudagraph(max_nodes=400); the entry belongs into "
                "cudagraph(...)",
            )
        given, limits = of_marker(where, marker.kwargs)
        options = {**given, **options}
        budgets = budgets.over(limits)
    return Marked(marked_options(where, options), budgets)


def prepare(item: pytest.Item) -> None:
    """Fail for a marker that is wrong, skip for a GPU that is not there."""
    try:
        marked = item.stash[MARKED] = read(item)
        if "cudagraph" not in getattr(item, "fixturenames", ()):
            raise usage(
                f"@pytest.mark.cudagraph of {item.name}: the test does not ask for the fixture",
                fix="give it the parameter `cudagraph`",
            )
    except CgtoolError as error:
        raise pytest.fail.Exception(told(error.failure), pytrace=False) from None
    reason = _why_not_here(item.config) if marked.options.requires_gpu else None
    if reason is not None:
        # pytest's own setup comes after this one, and tells a marker's skip at the test's line.
        item.add_marker(pytest.mark.skip(reason=f"requires a GPU: {reason}"))


def _why_not_here(config: pytest.Config) -> str | None:
    wanted = config.getoption("cudagraph_device")
    if wanted == "simulated":
        return "--cudagraph-device simulated was given"
    if wanted is not None:
        # Whoever says that there is a GPU is told by the capture when there is none.
        return None
    if _NO_GPU not in config.stash:
        config.stash[_NO_GPU] = _why_no_gpu()
    return config.stash[_NO_GPU]


_ASK = """
import json
from cgtool.jobs.context import choose_device
print(json.dumps(choose_device(None)))
"""


def _why_no_gpu() -> str | None:
    """Asked in a process of its own, because asking imports torch; None where there is a GPU."""
    asked = subprocess.run(
        [sys.executable, "-P", "-c", _ASK], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0:
        return (asked.stderr.strip().splitlines() or ["torch cannot be imported"])[-1]
    reason: str | None = json.loads(asked.stdout.splitlines()[-1])[1]
    return reason


def check_held(item: pytest.Item) -> None:
    """Fail a test that has passed and whose marked budgets nothing was held to."""
    marked = item.stash.get(MARKED, None)
    budgets = marked.budgets if marked is not None else Budgets()
    if (budgets.limits or budgets.increases) and not item.stash.get(GATED, False):
        pytest.fail(
            f"the budgets of @pytest.mark.cudagraph were not judged: {item.name} calls no "
            "graph.gate()\n  fix: call graph.gate() on what cudagraph(...) returns",
            pytrace=False,
        )
