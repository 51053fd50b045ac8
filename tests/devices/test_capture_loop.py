"""The loop that every command captures with: its order, what it keeps, and its errors."""

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import cgtool
from cgtool.devices.device import PhaseGraph, Session
from cgtool.model.failure import CgtoolError
from cgtool.model.options import CaptureOptions
from cgtool.program.workload import Workload, WorkloadPart


@dataclass(kw_only=True)
class LoggedSession(Session[PhaseGraph]):
    """Captures nothing, and logs what the loop calls."""

    log: list[str] = field(default_factory=list)
    empty: bool = False

    def new_graph(self, phase):
        self.log.append(f"new {phase.name}")
        return PhaseGraph(phase.name, phase.kind, phase.index, phase.part, graph=object())

    @contextlib.contextmanager
    def capturing(self, graph):
        self.log.append("begin")
        yield
        self.log.append("end")

    def is_empty(self):
        return self.empty

    @contextlib.contextmanager
    def observe(self, graph):
        self.log.append("watch")
        yield self.recorder()
        self.log.append("unwatch")

    @contextlib.contextmanager
    def recorder(self):
        self.log.append("record")
        yield
        self.log.append("recorded")


def session_of(*functions, kind="callables", **options):
    parts = tuple(
        WorkloadPart(f"f{number}", function, (torch.ones(2, requires_grad=True),))
        for number, function in enumerate(functions)
    )
    return LoggedSession(Workload("test", kind, parts), CaptureOptions(**options))


def double(x):
    return x * 2


ONE_CAPTURE = ["watch", "begin", "record", "recorded", "end", "unwatch"]


def test_observers_surround_a_capture_and_recorders_are_inside_of_it():
    session = session_of(double)
    session.capture_phases(session.observe)
    assert session.log == ["new forward", *ONE_CAPTURE, "new backward", *ONE_CAPTURE]


def test_every_forward_in_order_then_every_backward_in_reverse():
    session = session_of(double, double)
    reported = []
    session.capture_phases(progress=reported.append)
    names = ["forward 0", "forward 1", "backward 1", "backward 0"]
    assert [graph.name for graph in session.graphs] == names
    assert reported == [f"capture {name}" for name in names]
    assert [(graph.phase, graph.callable) for graph in session.graphs] == [
        ("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0)
    ]  # fmt: skip
    assert all(graph.capture_ns > 0 for graph in session.graphs)


def test_results_are_held_as_they_were_returned():
    session = session_of(lambda x: {"y": x * 2, "note": "text"}, kind="callable")
    session.capture_phases()
    assert session.results[0]["note"] == "text"
    assert [name for name, _ in session.outputs[0]] != []
    assert session.gradients[0][0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("options", "kind"), [({"backward": False}, "callable"), ({}, "step")])
def test_without_a_backward_there_is_one_graph(options, kind):
    session = session_of(double, kind=kind, **options)
    session.capture_phases()
    assert [graph.phase for graph in session.graphs] == ["step" if kind == "step" else "forward"]


def test_an_error_of_the_user_names_the_phase_and_the_line():
    def fails(x):
        raise ValueError("bad shape")

    session = session_of(double, fails)
    with pytest.raises(CgtoolError) as caught:
        session.capture_phases(session.observe)
    failure = caught.value.failure
    assert (failure.exit_code, failure.phase) == (4, "capture forward 1")
    assert failure.frames[0].line == fails.__code__.co_firstlineno + 1
    # The graph of the failed phase is not kept, and neither observer nor recorder ends as usual.
    assert [graph.name for graph in session.graphs] == ["forward 0"]
    assert session.log[-4:] == ["new forward 1", "watch", "begin", "record"]


def test_an_error_of_an_observer_is_not_the_users():
    def broken(_graph):
        raise KeyError("recorder")

    session = session_of(double)
    with pytest.raises(KeyError):
        session.capture_phases(broken)


def test_an_empty_graph_ends_with_its_reason():
    session = session_of(double)
    session.require_nodes()
    session.empty = True
    with pytest.raises(CgtoolError) as caught:
        session.require_nodes()
    failure = caught.value.failure
    assert failure.exit_code == 4 and failure.why and failure.fix
    assert failure.frames == session.workload.parts[0].frames


def test_no_other_code_captures():
    """A second loop would have to be kept like the first. Graphs of one op are exceptions: one
    measures what a replay takes outside of its nodes, one what a reset frees. So is the capture in
    which code of a script runs again, which is the script's own."""
    calls = [
        (path.relative_to(Path(cgtool.__file__).parent).as_posix(), match)
        for path in Path(cgtool.__file__).parent.rglob("*.py")
        for match in re.findall(r"torch\.cuda\.graph\(|\.capture_begin\(", path.read_text())
    ]
    assert sorted(path for path, _ in calls if path.startswith(("devices", "jobs"))) == [
        "devices/cuda/node_times.py",
        "devices/cuda/script.py",
        "devices/cuda/script.py",
        "devices/cuda/session.py",
        "devices/simulated/cudagraph.py",
        "devices/simulated/cudagraph.py",
    ]
