"""``cgtool capture`` and ``check`` on the simulated device: the steps of a GPU, on CPU tensors."""

from __future__ import annotations

import contextlib
import gc
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

import cgtool
from cgtool.detectors.capture_errors import explain
from cgtool.detectors.streams import capturing
from cgtool.devices.device import CapturedGraph, Checked, Session, processor, processors, quiet
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.device_model import Stream as SimulatedStream
from cgtool.devices.simulated.graph import CaptureRecorder, RandomStates, SimulatedGraph
from cgtool.devices.simulated.memory import LifetimeRecorder, predict
from cgtool.model.capture import Capture, Caveat, Edge, Environment, Graph, Node, Stream
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpCall, Record, numbered
from cgtool.observe.origins import OriginTable
from cgtool.program.boundary import user_errors
from cgtool.program.phases import (
    caveats_of,
    labels_of,
    modules_of,
    roots_of,
    run_phases,
    seed_all,
    warmup_iters,
)
from cgtool.program.workload import Part, Workload, describe_tensors, entry_of


@dataclass
class CapturedOps(CapturedGraph):
    """One simulated graph."""

    graph: SimulatedGraph


@dataclass(kw_only=True)
class SimulatedSession(Session[CapturedOps]):
    """Everything that one attempt on the simulated device keeps alive."""

    model: DeviceModel
    record: Record = field(default_factory=Record)
    """One record for all captures: a backward op finds its forward call in it."""
    accesses: AccessLog = field(default_factory=AccessLog)
    stream: SimulatedStream = field(init=False)
    """The stream of the last ``capture``."""
    lifetimes: LifetimeRecorder = field(init=False)
    """Lifetimes of storages in the last warm-up iteration."""

    def follow_lifetimes(self, annotations: Annotations) -> None:
        """Run the last warm-up iteration in the order of the capture, and record its allocations.
        Those that are alive at the end are labelled: outputs and gradients."""
        recorder = LifetimeRecorder(roots_of(self.workload), annotations, self.model)

        def run(part: Part, _phase: str, _index: int, body: Callable[[], Any]) -> Any:
            with user_errors(part, "warm-up", explain), recorder:
                result = body()
            recorder.sweep()
            recorder.graph += 1
            return result

        run_phases(self, run)
        labels = labels_of(self)
        for life in recorder.lives:
            if life.died is None:
                life.label = labels.get(life.address)
        self.lifetimes = recorder

    def new_graph(self, name: str, phase: str, index: int, part: Part) -> CapturedOps:
        return CapturedOps(name, phase, index, part, SimulatedGraph())

    @contextlib.contextmanager
    def capturing(self, graph: CapturedOps) -> Iterator[None]:
        with capturing(self.model, self.stream, self.activity(graph.name)):
            yield
            self.model.check_joins()
        graph.graph.stream_names = [stream.name for stream in self.model.streams]

    def capture(self, annotations: Annotations, progress: Progress = quiet) -> None:
        """Record every graph of the workload. Raises CgtoolError for what the user's code
        raises."""
        self.stream = self.model.stream_class(name="capture stream")
        states = RandomStates()

        @contextlib.contextmanager
        def observe(graph: CapturedOps) -> Iterator[CaptureRecorder]:
            roots = roots_of(self.workload)
            recorder = CaptureRecorder(roots, annotations, self.model, states, self.accesses)
            recorder.record, recorder.graph = self.record, graph.graph
            yield recorder

        self.capture_phases(observe, progress)

    def is_empty(self) -> bool:
        return not any(graph.graph.nodes for graph in self.captured)

    def why_empty(self) -> tuple[str, str]:
        if any(graph.graph.host_ops for graph in self.captured):
            return (
                "every op ran on CPU tensors, which are not part of a graph",
                "put tensors and modules on the device that the factory is given",
            )
        return (
            "the callable ran no op that launches work: it returned a cached result or an input",
            "check that every call computes its result",
        )


def prepare(
    model: DeviceModel, workload: Workload, options: CaptureOptions, progress: Progress
) -> SimulatedSession:
    """Warm up, follow lifetimes, capture: a session that can replay. Raises CgtoolError."""
    session = SimulatedSession(workload, options, model=model)
    seed_all(options.seed)
    session.warmup_iters, _ = warmup_iters(workload, options)
    begin = time.perf_counter_ns()
    with watch_annotations(options.annotations) as annotations:
        session.warm_up(max(0, session.warmup_iters - 1), annotations, progress)
        gc.collect()
        session.follow_lifetimes(annotations)
        session.warmup_ns = time.perf_counter_ns() - begin
        session.capture(annotations, progress)
    session.require_nodes()
    return session


def capture(
    model: DeviceModel, workload: Workload, options: CaptureOptions, progress: Progress, why: str
) -> Capture:
    """Capture on the simulated device; ``why`` is the reason why it is not a GPU.

    Raises CgtoolError when a GPU would refuse to capture the user's code.
    """
    return _build(prepare(model, workload, options, progress), why)


def check(
    model: DeviceModel, workload: Workload, options: CaptureOptions, progress: Progress, why: str
) -> tuple[Checked, Capture | None]:
    """All hazards, and the capture when there was one; ``why`` as in ``capture``.

    Raises CgtoolError when the code fails in eager mode already.
    """
    # Imported here so that `capture` does not load the rules of `check`.
    from cgtool.detectors.check_entry import check_entry, findings_of_graph

    session = SimulatedSession(workload, options, model=model, warmup_iters=1)
    captures: list[Capture] = []
    if options.seed is not None:
        torch.manual_seed(options.seed)

    def dry_run(annotations: Annotations, options: CaptureOptions) -> Sequence[OpCall]:
        session.options = options
        session.follow_lifetimes(annotations)
        session.capture(annotations, progress)
        for graph in session.captured:
            for finding in findings_of_graph(graph.graph.nodes, session.record):
                model.findings.add(finding)
        session.require_nodes()
        captures.append(_build(session, why))
        return session.record.calls

    with watch_annotations(options.annotations) as annotations:
        checked = check_entry(model, workload, options, progress, annotations, dry_run)
    return (model.findings.all(), checked), captures[0] if captures else None


def environment() -> Environment:
    """The software that the model runs on."""
    return Environment(
        device="simulated",
        simulated=True,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=processor(),
        cpus=processors(),
    )


def _build(session: SimulatedSession, why: str) -> Capture:
    """The capture as plain data."""
    table = OriginTable(session.workload.entry_frame())
    streams: dict[str, int] = {"capture stream": 0}
    separate = session.options.pool == "separate"
    graphs = tuple(
        _graph(graph, session.record, table, streams, pool=index if separate else 0)
        for index, graph in enumerate(session.captured)
    )
    tensors, unnamed = describe_tensors(session.workload, session.accesses.number_of)
    memory = predict(session.lifetimes, graphs, separate, table, streams, tuple(tensors))
    simulated = Caveat(
        "simulated",
        f"simulated on CPU tensors ({why}): ops and their order are real, there are no kernels "
        "and no GPU times, and the pool is a model of PyTorch's allocator",
    )
    empty = [graph.name for graph in session.captured if not graph.graph.nodes]
    return Capture(
        entry=entry_of(session.workload, session.options),
        environment=environment(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cgtool=cgtool.__version__,
        graphs=graphs,
        frames=table.frames,
        origins=table.origins,
        argument_lists=session.accesses.argument_lists(),
        modules=modules_of(session.workload),
        streams=tuple(Stream(index, name) for name, index in streams.items()),
        memory=memory,
        warmup_iters=session.warmup_iters,
        warmup_ns=session.warmup_ns,
        recorder="simulated",
        caveats=(simulated, *session.model.uncompiled, *unnamed, *caveats_of(session, empty)),
    )


def _graph(
    captured: CapturedOps, record: Record, table: OriginTable, streams: dict[str, int], pool: int
) -> Graph:
    names = [streams.setdefault(name, len(streams)) for name in captured.graph.stream_names]
    recorded = captured.graph.nodes
    calls, call_of = numbered([node.call for node in recorded])
    nodes = tuple(
        Node(
            id=index,
            type="op",
            origin=table.add(node.call, record),
            call=call,
            stream=names[node.stream],
            shape=node.shape,
        )
        for index, (node, call) in enumerate(zip(recorded, call_of, strict=True))
    )
    edges = tuple(
        Edge(source, target) for target, node in enumerate(recorded) for source in node.dependencies
    )
    return Graph(
        name=captured.name,
        phase=captured.phase,
        callable=captured.callable,
        pool=pool,
        nodes=nodes,
        edges=edges,
        capture_ns=captured.capture_ns,
        calls=calls,
    )
