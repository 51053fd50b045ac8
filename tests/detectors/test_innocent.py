"""Code that captures well and replays correctly has no hazards."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from cgtool.analysis.graph.summary import graph_findings
from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.model.options import CaptureOptions
from cgtool.program.load import load
from tests.detectors import innocent_code

FILE = Path(innocent_code.__file__)
CASES = [
    name
    for name, member in vars(innocent_code).items()
    if inspect.isfunction(member) and list(inspect.signature(member).parameters) == ["device"]
]
NOTED = ("checks_only_in_eager_mode",)
"""Reported as a note, not as a hazard."""


def test_there_are_enough_of_them():
    assert len(CASES) >= 30


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_found(name):
    device = SimulatedDevice("test")
    with device.active():
        workload = load(f"{FILE}:{name}", device="cuda")
        (findings, looked), captured = device.check(workload, CaptureOptions(), lambda _text: None)
    assert captured is not None, looked
    more = graph_findings(captured[0])
    shown = explain_findings((*findings, *more))
    assert [
        (finding.code, finding.place, finding.reason) for finding in shown if is_hazard(finding)
    ] == []
    notes = [finding.code for finding in shown]
    assert notes == (["code-branches-on-capturing"] if name in NOTED else [])
