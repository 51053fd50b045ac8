"""Warm up, record, capture: the procedure of ``torch.cuda.make_graphed_callables``, kept open.

PyTorch's function drops the graphs' templates, takes modules apart and reports nothing. Here every
graph is captured with ``keep_graph=True``, instantiated explicitly, timed and watched. The order of
captures, the side stream of the warm-up, the static gradients and the shared pool are the same, so
the nodes are the same.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, cast

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.cuda import cupti, memory
from cgtool.devices.cuda.driver import check, cu, node_count
from cgtool.devices.cuda.stamps import InCaptureRecorder, Launch, LaunchLog, Stamp, watch_capture
from cgtool.devices.cuda.stepping import (
    FollowedOp,
    GeneratedMemory,
    MemoryRecorder,
)
from cgtool.devices.device import Device, PhaseGraph, Recorder, Session, quiet
from cgtool.model.capture import Caveat
from cgtool.model.failure import CgtoolError, machine, user_code
from cgtool.model.options import Progress
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.compiled_code import can_pause
from cgtool.observe.generated import GeneratedCode
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.program.boundary import first_line, user_errors
from cgtool.program.description import generators_of
from cgtool.program.load import seed_all
from cgtool.program.phases import (
    Phase,
    call,
    differentiable,
    grads,
    warmup_iters,
)
from cgtool.program.workload import WorkloadPart
from cgtool.torch_compat import op_key
from cgtool.torch_compat.patches import Patches


@dataclass
class Recorded:
    """One phase of the recorded warm-up."""

    record: Record
    launches: list[Launch] = field(default_factory=list)


@dataclass
class CudaPhaseGraph(PhaseGraph):
    """One captured graph and everything that was observed while it was captured."""

    pool: memory.PoolId
    start_ns: int = 0
    """Begin and end of the capture, by the system clock."""
    end_ns: int = 0
    stamps: list[Stamp] = field(default_factory=list)
    recorded: Recorded | None = None
    """The warm-up to align the stamps with; None if ``exact`` has everything."""
    ops: list[FollowedOp] = field(default_factory=list)
    """As of ``MemoryRecorder`` or ``GeneratedMemory``."""
    exact: Record | None = None
    """The record of the capture itself, if CUPTI was not available."""
    exact_calls: list[OpCall] = field(default_factory=list)
    """Its calls that ran in this capture."""
    instantiate_ns: int | None = None
    upload_ns: int | None = None
    exec_bytes: int | None = None
    launch_ns: list[int] = field(default_factory=list)
    """Host times of single replays on an idle device."""

    @property
    def typical_launch_ns(self) -> float:
        """0 if its launches were not timed."""
        return median(self.launch_ns or (0,))

    @property
    def template(self) -> Any:
        """The CUgraph that nodes are read from."""
        return cu.CUgraph(self.graph.raw_cuda_graph())

    def node_count(self) -> int:
        return node_count(self.template)


@dataclass(kw_only=True)
class CudaSession(Session[CudaPhaseGraph]):
    """Everything that one attempt on a GPU keeps alive."""

    device: Device
    stream: Any
    keep_graph: bool = True
    """Whether to keep the templates, from which nodes are read."""
    pools: dict[memory.PoolId, str] = field(default_factory=dict)
    """Names by id."""
    trace: memory.Trace = field(default_factory=memory.Trace)
    recorded: list[dict[str, Recorded]] = field(default_factory=list)
    """The last warm-up iteration of each callable, by phase."""
    problem: str | None = None
    """Why CUPTI's callbacks are not available."""
    follows_memory: bool = False
    """Whether to note in a capture what each op writes (``CudaPhaseGraph.ops``)."""
    streams: dict[int, int] = field(default_factory=dict)
    """Handle to index; the capturing stream is the first."""
    exact_record: Record = field(default_factory=Record)
    """One record for all captures: a backward op finds its forward call in it."""
    accesses: AccessLog = field(default_factory=AccessLog)
    caveats: list[Caveat] = field(default_factory=list)
    """Notes on what was captured and measured."""
    generated_code: GeneratedCode | None = None
    """Code that ``torch.compile`` generated, in the warm-up at the latest."""

    def __post_init__(self) -> None:
        self.streams[self.stream.cuda_stream] = 0

    def warm_up(self, progress: Progress) -> None:
        """Warm up on a side stream; the last iteration of each callable is recorded."""
        seed_all(self.options.seed)
        self.warmup_iters, note = warmup_iters(self.workload, self.options)
        if note is not None:
            self.caveats.append(Caveat("warm-up", note))
        begin = time.perf_counter_ns()
        ranges = watch_annotations(self.options.annotations)
        with ranges as annotations, Patches() as patches, self.device.eager_stream():
            self.generated_code = GeneratedCode(patches)
            last = partial(self._record, annotations)
            self.run_eagerly(self.warmup_iters, progress, explain, last)
        with user_errors(self.workload.parts[-1], "warm-up", explain):
            self.device.synchronize()
        self.warmup_ns = time.perf_counter_ns() - begin

    def _record(self, annotations: Annotations, part: WorkloadPart) -> None:
        """One warm-up iteration under the op recorder, its launches logged."""
        log = LaunchLog()
        recorder = OpRecorder(part.modules, annotations, log.count, self.accesses)
        log.recorder = recorder
        phases: dict[str, Recorded] = {}
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(cupti.watch_launches(log.launched))
            except cupti.CuptiUnavailable as error:
                self.problem = str(error)
            with recorder:
                outputs = self.outputs_of(part, call(part))
                split = log.count()
                if self.wants_backward:
                    backward = differentiable(part, outputs)
                    if backward is not None:
                        begin = log.count()
                        grads(backward, self.options.allow_unused_input)
                        phases["backward"] = Recorded(recorder.record, log.launches[begin:])
        phases[self.first_kind] = Recorded(recorder.record, log.launches[:split])
        self.recorded.append(phases)

    def new_graph(self, phase: Phase) -> CudaPhaseGraph:
        separate = self.options.pool == "separate"
        if separate or not self.pools:
            self.pools[torch.cuda.graph_pool_handle()] = phase.name if separate else "graphs"
        graph = torch.cuda.CUDAGraph(keep_graph=self.keep_graph)
        for generator in generators_of(self.workload).values():
            graph.register_generator_state(generator)
        self.device.synchronize()
        pool = [*self.pools][-1]
        return CudaPhaseGraph(phase.name, phase.kind, phase.index, phase.part, graph, pool=pool)

    def capturing(self, graph: CudaPhaseGraph) -> AbstractContextManager[object]:
        return torch.cuda.graph(
            graph.graph,
            pool=cast(Any, graph.pool),
            stream=self.stream,
            capture_error_mode=self.options.capture_error_mode,
        )

    def capture(self, progress: Progress = quiet) -> None:
        """Capture every phase, its nodes stamped and the allocator's events recorded.

        Raises CgtoolError for what the user's code raises.
        """
        gc.collect()
        memory.start(self.device.index)
        with watch_annotations(self.options.annotations) as annotations:
            self.capture_phases(partial(self._observe, annotations), progress)
        for graph in self.graphs:
            handles = [stamp.stream for stamp in graph.stamps]
            handles += [
                call.extra.stream
                for call in graph.exact_calls
                if call.launches[1] > call.launches[0]
            ]
            for handle in handles:
                self.streams.setdefault(handle, len(self.streams))
        self.trace = memory.read(
            self.device.index, self.pools, [graph.start_ns for graph in self.graphs], self.streams
        )
        memory.stop(self.device.index)

    @contextlib.contextmanager
    def _observe(self, annotations: Annotations, graph: CudaPhaseGraph) -> Iterator[Recorder]:
        """Stamp the nodes of a capture; if that is not possible, record the ops inside it."""
        graph.recorded = self.recorded[graph.callable].get(graph.phase) if self.recorded else None
        exact: InCaptureRecorder | None = None
        stamps: list[Stamp] | None = None
        with contextlib.ExitStack() as stack:
            if graph.recorded is not None and self.problem is None:
                try:
                    # No module hooks: code compiled by torch.compile would see them and recompile.
                    stamps = stack.enter_context(watch_capture(annotations, self.device.index))
                except cupti.CuptiUnavailable as error:
                    self.problem = str(error)
            # Under a recorder, compiled code would run eagerly.
            is_compiled = self.generated_code is not None and self.generated_code.is_used
            follows = self.follows_memory and not is_compiled
            if self.follows_memory and is_compiled and op_key.is_supported() and can_pause():
                stack.enter_context(GeneratedMemory(self.stream.cuda_stream, graph.ops))
            if stamps is None or follows:
                exact = (MemoryRecorder if follows else InCaptureRecorder)(
                    graph.part.modules,
                    annotations,
                    self.device.index,
                    self.stream.cuda_stream,
                    self.accesses,
                )
                exact.record = self.exact_record
            if isinstance(exact, MemoryRecorder):
                exact.ops = graph.ops
            first = len(self.exact_record.calls)
            graph.start_ns = time.time_ns()
            yield exact if exact is not None else contextlib.nullcontext()
            graph.end_ns = time.time_ns()
        graph.stamps = stamps or []
        graph.exact = exact.record if exact is not None and stamps is None else None
        graph.exact_calls = self.exact_record.calls[first:]

    def is_empty(self) -> bool:
        return not any(graph.node_count() for graph in self.graphs)

    def instantiate(self, progress: Progress) -> None:
        """Instantiate and upload every graph, each timed, with the driver's memory for it.

        Raises CgtoolError: exit 3 when there is no memory for it, 4 when the driver refuses it.
        """
        for graph in self.graphs:
            progress(f"instantiate {graph.name}")
            try:
                self._instantiate(graph)
            except RuntimeError as error:
                raise not_instantiated(graph.name, error) from error

    def _instantiate(self, graph: CudaPhaseGraph) -> None:
        self.device.synchronize()
        free_before, _ = torch.cuda.mem_get_info(self.device.index)
        begin = time.perf_counter_ns()
        graph.graph.instantiate()
        graph.instantiate_ns = time.perf_counter_ns() - begin
        handle = getattr(graph.graph, "raw_cuda_graph_exec", None)
        if handle is not None:
            begin = time.perf_counter_ns()
            check(
                "cuGraphUpload",
                cu.cuGraphUpload(cu.CUgraphExec(handle()), cu.CUstream(self.stream.cuda_stream)),
            )
            self.device.synchronize()
            graph.upload_ns = time.perf_counter_ns() - begin
        free_after, _ = torch.cuda.mem_get_info(self.device.index)
        # Other work on the device can give memory back meanwhile.
        graph.exec_bytes = max(0, free_before - free_after)


def not_instantiated(name: str, error: RuntimeError) -> CgtoolError:
    """The failure of a graph that was captured but cannot be instantiated."""
    text = first_line(error)
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text.lower():
        return machine(
            f"{name} was captured, but there is no device memory left for its executable graph",
            why=text,
            fix="close other programs on this GPU, or capture less at once",
        )
    return user_code(
        f"{name} was captured, but the driver cannot instantiate it",
        why=text,
        phase=f"instantiate {name}",
    )
