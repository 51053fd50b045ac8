"""The simulated device: a GPU modeled on CPU tensors, and what jobs do on it.

A method imports what it needs: a capture does not wait for the rules of ``check``.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

import cgtool
from cgtool.devices.device import CaptureWithDot, Checked, Device, VerifyTarget
from cgtool.devices.processor import processor, processors
from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.graph import SimulatedNode
from cgtool.devices.simulated.memory import predict
from cgtool.devices.simulated.redirect import redirected
from cgtool.devices.simulated.session import (
    SimulatedPhaseGraph,
    SimulatedSession,
    SimulatedVerifyTarget,
    prepare,
)
from cgtool.model.capture import (
    SIMULATED_OPS,
    Capture,
    Caveat,
    Contents,
    Edge,
    Environment,
    Graph,
    Node,
    Stream,
    created_now,
)
from cgtool.model.failure import EXIT_UNKNOWN, CgtoolError, cannot_tell
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import Annotations
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpCall, Record, numbered
from cgtool.observe.origins import OriginTable
from cgtool.program.description import caveats_of, entry_of, modules_of, tensors_of
from cgtool.program.load import seed_all
from cgtool.program.workload import Workload


class SimulatedDevice(Device):
    factory_device = "cuda"
    index = 0

    def __init__(self, simulated_because: str) -> None:
        """``simulated_because``: why it is not a GPU."""
        self.simulated_because: str = simulated_because
        self.model = DeviceModel()

    def notes(self) -> tuple[Caveat, ...]:
        simulated = f"simulated on CPU tensors ({self.simulated_because})"
        return (Caveat("simulated", simulated), *self.model.uncompiled)

    @contextlib.contextmanager
    def active(self) -> Iterator[DeviceModel]:
        with redirected(self.model):
            yield self.model

    def capture(
        self, workload: Workload, options: CaptureOptions, progress: Progress
    ) -> CaptureWithDot:
        return self._capture_of(prepare(self.model, workload, options, progress)), {}

    def check(
        self, workload: Workload, options: CaptureOptions, progress: Progress, dry_run_only: bool
    ) -> tuple[Checked, CaptureWithDot | None]:
        from cgtool.detectors.check_entry import check_entry, findings_of_graph

        session = SimulatedSession(workload, options, model=self.model, warmup_iters=1)
        captures: list[CaptureWithDot] = []
        seed_all(options.seed)

        def dry_run(_ranges: Annotations, options: CaptureOptions) -> Sequence[OpCall]:
            session.options = options
            session.follow_lifetimes()
            session.capture(progress)
            for graph in session.graphs:
                for finding in findings_of_graph(graph.graph.nodes, session.record):
                    self.model.findings.add(finding)
            session.require_nodes()
            captures.append((self._capture_of(session), {}))
            return session.record.calls

        with watch_annotations(options.annotations) as annotations:
            later = not dry_run_only
            checked = check_entry(
                self.model, workload, options, progress, annotations, dry_run, later=later
            )
        return (self.model.findings.all(), checked), captures[0] if captures else None

    def check_script(self, path: str, arguments: tuple[str, ...], progress: Progress) -> Checked:
        from cgtool.devices.simulated.cudagraph import check_script
        from cgtool.devices.simulated.script_device import ScriptDevice

        self.model = model = ScriptDevice()
        try:
            return check_script(path, arguments, progress, model)
        except CgtoolError as error:
            if error.failure.exit_code != EXIT_UNKNOWN or not model.uncompiled:
                raise
            raise cannot_tell(
                error.failure.message,
                why=model.uncompiled[0].text,
                fix=f"name the function that is compiled: `cgtool check {path}:NAME`; or check the "
                "script on a machine with a GPU",
                phase=error.failure.phase,
            ) from None

    def verify_target(self, workload: Workload, options: CaptureOptions) -> VerifyTarget:
        session = SimulatedSession(workload, options, model=self.model)
        return SimulatedVerifyTarget(self, session, self._capture_of)

    def environment(self) -> Environment:
        return Environment(
            device="simulated",
            simulated=True,
            torch=str(torch.__version__),
            python=platform.python_version(),
            platform=platform.platform(),
            cpu=processor(),
            cpus=processors(),
        )

    def _capture_of(self, session: SimulatedSession) -> Capture:
        """The capture as plain data."""
        table = OriginTable(session.workload.frame)
        streams: dict[str, int] = {"capture stream": 0}
        separate = session.options.pool == "separate"
        graphs = tuple(
            _graph(graph, session.record, table, streams, pool=index if separate else 0)
            for index, graph in enumerate(session.graphs)
        )
        empty = [graph.name for graph in session.graphs if not graph.graph.nodes]
        tensors, unnamed = tensors_of(session.workload, session.accesses.number_of)
        simulated = Caveat(
            "simulated",
            f"simulated on CPU tensors ({self.simulated_because}): {SIMULATED_OPS}; there are no "
            "kernels and no GPU times, and the pool is a model of PyTorch's allocator",
        )
        # Before the tables are read: blocks of memory have origins of their own.
        memory = predict(session.lifetimes, graphs, separate, table, streams, tuple(tensors))
        return Capture(
            entry=entry_of(session.workload, session.options),
            environment=self.environment(),
            created=created_now(),
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
            caveats=(
                simulated,
                *session.model.uncompiled,
                *session.model.differences.values(),
                *unnamed,
                *caveats_of(session, empty),
            ),
        )

    def eager_stream(self, stream: Any = None) -> AbstractContextManager[object]:
        return stream or contextlib.nullcontext()

    def synchronize(self) -> None:
        """Nothing to wait for: every op has run when its call returns."""

    def is_host_work(self, values: Any) -> bool:
        return self.model.on_host

    def free_bytes(self) -> int:
        return sys.maxsize

    def overwrite_free_memory(self, byte: int = 0xFF) -> None:
        """Nothing to do: the record of a graph keeps alive everything that it reads."""


def _graph(
    captured: SimulatedPhaseGraph,
    record: Record,
    table: OriginTable,
    streams: dict[str, int],
    pool: int,
) -> Graph:
    names = [streams.setdefault(name, len(streams)) for name in captured.graph.stream_names]
    recorded = captured.graph.nodes
    calls, call_of = numbered([node.call for node in recorded])
    nodes, edges = contents_of(recorded, call_of, record, table, names)
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


def contents_of(
    recorded: Sequence[SimulatedNode],
    calls: Sequence[int | None],
    record: Record,
    table: OriginTable,
    streams: Sequence[int] = (),
) -> Contents:
    """Nodes and edges as plain data. ``calls``: of each node; ``streams``: the index of each stream
    of the graph, if that is not its number there."""
    nodes = tuple(
        Node(
            id=index,
            type="op",
            origin=table.add(node.call, record),
            call=call,
            stream=streams[node.stream] if streams else node.stream,
            shape=node.shape,
        )
        for index, (node, call) in enumerate(zip(recorded, calls, strict=True))
    )
    edges = (
        Edge(source, target) for target, node in enumerate(recorded) for source in node.dependencies
    )
    return nodes, tuple(edges)
