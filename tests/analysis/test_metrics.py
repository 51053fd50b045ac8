"""A metric is declared once: its row in ``METRICS``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cgtool.analysis.gate.metrics import METRICS

ROW = """
from cgtool.analysis.gate import metrics
from cgtool.analysis.gate.evidence import Evidence

metrics.METRICS += (
    metrics.Metric(
        name="islands",
        means="islands of a graph",
        counted=lambda _capture, graphs: 7 * len(graphs),
        evidence=lambda context: Evidence(("a volcano",)),
        bounds=("max", "min"),
        watched=True,
    ),
)
metrics.BY_NAME["islands"] = metrics.METRICS[-1]
"""


def with_row(code: str) -> list[str]:
    """What a fresh interpreter prints, where the table has one row more."""
    done = subprocess.run(
        [sys.executable, "-c", ROW + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_new_row_is_measured_judged_and_explained():
    lines = with_row(
        """
import msgspec
from cgtool.analysis.gate.budgets import from_options
from cgtool.analysis.gate.judge import judge
from cgtool.analysis.gate.measured import measure
from cgtool.model import baseline
from tests.builders import small

measured = measure([small()])
print(measured.values.counts["islands"], measured.values.counts["islands.forward"])
print(b'"islands": 14' in baseline.encode(measured.values))
judged = judge(measured, from_options({"max-islands": ["forward=6"]}), measured.values)
for one in judged.verdicts:
    if one.metric.startswith("islands"):
        print(one.metric, one.verdict, one.evidence)
print(msgspec.to_builtins(judged)["figures"]["islands"])
"""
    )
    assert lines == [
        "14 7",
        "True",
        "islands.forward fail ('a volcano',)",
        "islands pass ()",
        "14",
    ]


def test_a_new_row_is_an_option_a_key_and_an_argument():
    lines = with_row(
        """
from pathlib import Path
from typer.main import get_command
from cgtool.cli.app import app
from cgtool.cli.gate_project import Project, project_budgets
from cgtool.pytest_plugin.marker import of_marker

command = get_command(app).get_command(None, "gate")
print([flag for one in command.params for flag in one.opts if "islands" in flag])
project = Project(Path("p.toml"), {"gate": {"max-islands": 3}})
print(project_budgets(project, "m.py:f", simulated=False).limits[0].metric)
print(of_marker("marker", {"min_islands": 2})[1].limits[0].metric)
"""
    )
    assert lines == ["['--max-islands', '--min-islands']", "islands", "islands"]


def test_a_new_row_is_an_attribute_of_a_captured_graph():
    lines = with_row(
        """
from types import SimpleNamespace
from cgtool.analysis.gate.budgets import Budgets
from cgtool.pytest_plugin.graph import Graph
from tests.builders import small

workers = SimpleNamespace(
    capture=lambda spec: small(), entry=SimpleNamespace(name="m.py:f"), options=None
)
graph = Graph(None, 1, workers, Budgets())
print(graph.islands, "islands" in dir(graph))
"""
    )
    assert lines == ["14 True"]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_row_has_one_reader(metric):
    readers = (metric.counted, metric.after, metric.reported, metric.timed)
    assert sum(reader is not None for reader in readers) == 1
    assert metric.means
    assert metric.missing or metric.counted is not None or metric.name == "findings"
