"""Warm up, record, capture: the procedure of ``torch.cuda.make_graphed_callables``, kept open.

PyTorch's function throws the graphs' templates away, takes modules apart and says nothing. Here
every graph is captured with ``keep_graph=True``, instantiated explicitly, timed and watched; the
order of captures, the side stream of the warm-up, the static gradients and the shared pool are the
same, so the nodes are the same.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from cgtool.detectors.errors import explain
from cgtool.devices.cuda import cupti, memory
from cgtool.devices.cuda.driver import check, cu
from cgtool.devices.cuda.stamps import InCaptureRecorder, Launch, LaunchLog, Stamp, watch_capture
from cgtool.model.failure import CgtoolError, machine, user_code
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.program.boundary import first_line, user_errors
from cgtool.program.phases import iterate, name_of, through, wants_backward
from cgtool.program.surface import (
    Named,
    Surface,
    call,
    differentiable,
    flatten_outputs,
    grad_outputs,
    grads,
)
from cgtool.program.workload import Part, Workload


@dataclass
class Recorded:
    """One phase of the recorded warm-up."""

    record: Record
    launches: list[Launch] = field(default_factory=list)


@dataclass
class Captured:
    """One captured graph and everything seen while it was captured."""

    name: str
    phase: str
    callable: int
    graph: Any
    pool_index: int
    window: memory.Window
    capture_ns: int
    stamps: list[Stamp]
    recorded: Recorded | None
    """What to align the stamps with; None: ``exact`` says it all."""
    exact: Record | None = None
    """What was recorded during the capture itself, when CUPTI could not be had."""
    exact_calls: list[OpCall] = field(default_factory=list)
    """Those of its calls that are this capture's."""
    instantiate_ns: int | None = None
    upload_ns: int | None = None
    exec_bytes: int | None = None


@dataclass
class Session:
    """All that one attempt holds alive: graphs replay on these very tensors."""

    workload: Workload
    options: CaptureOptions
    device: int
    stream: Any
    captured: list[Captured] = field(default_factory=list)
    pool_ids: list[tuple[int, int]] = field(default_factory=list)
    pool_names: list[str] = field(default_factory=list)
    outputs: dict[int, list[Named]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    """What each callable returned, tensors or not: held, as a user would hold it."""
    surfaces: dict[int, Surface] = field(default_factory=dict)
    incoming: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    gradients: dict[int, tuple[torch.Tensor | None, ...]] = field(default_factory=dict)
    trace: memory.Trace = field(default_factory=memory.Trace)
    warmup_ns: int = 0
    problem: str | None = None
    """Why node callbacks could not be had."""
    streams: dict[int, int] = field(default_factory=dict)
    """Handle to index; the capturing stream is the first."""

    exact_record: Record = field(default_factory=Record)
    """One record for all captures: backward looks up its forward calls in it."""
    accesses: AccessLog = field(default_factory=AccessLog)

    def __post_init__(self) -> None:
        self.streams[self.stream.cuda_stream] = 0


def _record_iteration(
    session: Session, part: Part, annotations: Annotations
) -> dict[str, Recorded]:
    """One warm-up iteration under the op recorder, its launches logged."""
    log = LaunchLog()
    recorder = OpRecorder(part.modules, annotations, log.count, session.accesses)
    log.recorder = recorder
    forward_phase = "step" if session.workload.kind == "step" else "forward"
    found: dict[str, Recorded] = {}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(cupti.watch_launches(log.launched))
        except cupti.CuptiUnavailable as error:
            session.problem = str(error)
        with recorder:
            outputs = flatten_outputs(call(part))
            split = log.count()
            if wants_backward(session):
                surface = differentiable(part, outputs)
                if surface is not None:
                    incoming = grad_outputs(surface)
                    begin = log.count()
                    grads(surface, incoming, session.options.allow_unused_input)
                    found["backward"] = Recorded(recorder.record, log.launches[begin:])
    found[forward_phase] = Recorded(recorder.record, log.launches[:split])
    return found


def warm_up(
    session: Session, iterations: int, annotations: Annotations, progress: Progress
) -> list[dict[str, Recorded]]:
    """Warm-up on a side stream; the last iteration of each callable is recorded."""
    side = torch.cuda.Stream(session.device)
    side.wait_stream(torch.cuda.current_stream(session.device))
    recorded: list[dict[str, Recorded]] = []
    started = time.perf_counter_ns()
    with torch.cuda.stream(side):
        for part in session.workload.parts:
            phases: dict[str, Recorded] = {}
            for iteration in range(iterations):
                progress(f"warm-up {iteration + 1}/{iterations} of {part.name}")
                with user_errors(part, "warm-up", explain):
                    if iteration == iterations - 1:
                        phases = _record_iteration(session, part, annotations)
                    else:
                        iterate(session, part)
            recorded.append(phases)
    torch.cuda.current_stream(session.device).wait_stream(side)
    with user_errors(session.workload.parts[-1], "warm-up", explain):
        torch.cuda.synchronize(session.device)
    session.warmup_ns = time.perf_counter_ns() - started
    return recorded


def _capture_one(
    session: Session,
    part: Part,
    *,
    phase: str,
    index: int,
    body: Callable[[], Any],
    recorded: Recorded | None,
    annotations: Annotations,
    progress: Progress,
) -> Any:
    name = name_of(session, phase, index)
    progress(f"capture {name}")
    separate = session.options.pool == "separate"
    if separate or not session.pool_ids:
        session.pool_ids.append(torch.cuda.graph_pool_handle())
        session.pool_names.append(name if separate else "graphs")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    exact: InCaptureRecorder | None = None
    torch.cuda.synchronize(session.device)
    with contextlib.ExitStack() as stack:
        watch = None
        if recorded is not None and session.problem is None:
            # No module hooks here: code compiled by torch.compile would see them and recompile.
            watch = stack.enter_context(watch_capture(annotations, session.device))
            session.problem = watch.problem
        if watch is None or watch.problem is not None:
            exact = InCaptureRecorder(
                part.modules,
                annotations,
                session.device,
                session.stream.cuda_stream,
                session.accesses,
            )
            exact.record = session.exact_record
        exact_from = len(session.exact_record.calls)
        start_ns = time.time_ns()
        clock = time.perf_counter_ns()
        with (
            user_errors(part, f"capture {name}", explain),
            torch.cuda.graph(
                graph,
                pool=cast(Any, session.pool_ids[-1]),
                stream=session.stream,
                capture_error_mode=session.options.capture_error_mode,
            ),
            exact if exact is not None else contextlib.nullcontext(),
        ):
            result = body()
        capture_ns = time.perf_counter_ns() - clock
        end_ns = time.time_ns()
    session.captured.append(
        Captured(
            name=name,
            phase=phase,
            callable=index,
            graph=graph,
            pool_index=len(session.pool_ids) - 1,
            window=memory.Window(len(session.captured), start_ns, end_ns),
            capture_ns=capture_ns,
            stamps=watch.stamps if watch is not None else [],
            recorded=recorded,
            exact=exact.record if exact is not None else None,
            exact_calls=session.exact_record.calls[exact_from:],
        )
    )
    return result


def capture_all(
    session: Session,
    recorded: list[dict[str, Recorded]],
    annotations: Annotations,
    progress: Progress,
) -> None:
    """Capture every forward in order, then every backward in reverse."""

    def run(part: Part, phase: str, index: int, body: Callable[[], Any]) -> Any:
        result = _capture_one(
            session,
            part,
            phase=phase,
            index=index,
            body=body,
            recorded=recorded[index].get(phase) if recorded else None,
            annotations=annotations,
            progress=progress,
        )
        if phase != "backward":
            session.results[index] = result
        return result

    gc.collect()
    memory.start(session.device)
    through(session, run)
    for one in session.captured:
        ran_on = [stamp.stream for stamp in one.stamps]
        ran_on += [
            call.extra.stream for call in one.exact_calls if call.launches[1] > call.launches[0]
        ]
        for handle in ran_on:
            session.streams.setdefault(handle, len(session.streams))
    session.trace = memory.read(
        session.device,
        session.pool_ids,
        session.pool_names,
        [one.window for one in session.captured],
        session.streams,
    )
    memory.stop(session.device)


def node_count(one: Captured) -> int:
    """Nodes at the top level of a captured graph."""
    template = cu.CUgraph(one.graph.raw_cuda_graph())
    _, number = check("cuGraphGetNodes", cu.cuGraphGetNodes(template, 0))
    return int(number)


def instantiate_all(session: Session, progress: Progress) -> None:
    """Instantiate and upload every graph, each timed, with the driver's memory for it.

    Raises CgtoolError: exit 3 when there is no memory for it, 4 when the driver refuses the graph.
    """
    for one in session.captured:
        progress(f"instantiate {one.name}")
        try:
            _instantiate(session, one)
        except RuntimeError as error:
            raise not_instantiated(one.name, error) from error


def _instantiate(session: Session, one: Captured) -> None:
    torch.cuda.synchronize(session.device)
    free_before, _ = torch.cuda.mem_get_info(session.device)
    clock = time.perf_counter_ns()
    one.graph.instantiate()
    one.instantiate_ns = time.perf_counter_ns() - clock
    handle = getattr(one.graph, "raw_cuda_graph_exec", None)
    if handle is not None:
        clock = time.perf_counter_ns()
        check(
            "cuGraphUpload",
            cu.cuGraphUpload(cu.CUgraphExec(handle()), cu.CUstream(session.stream.cuda_stream)),
        )
        torch.cuda.synchronize(session.device)
        one.upload_ns = time.perf_counter_ns() - clock
    free_after, _ = torch.cuda.mem_get_info(session.device)
    # Other work on the device can give memory back meanwhile.
    one.exec_bytes = max(0, free_before - free_after)


def not_instantiated(name: str, error: RuntimeError) -> CgtoolError:
    """What it means that a captured graph cannot be made ready to run."""
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
