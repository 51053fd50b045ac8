"""``cgtool capture`` on a GPU: the steps in order."""

from __future__ import annotations

import time

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.devices.cuda import node_times
from cgtool.devices.cuda.addresses import require_live_inputs
from cgtool.devices.cuda.assemble import assemble
from cgtool.devices.cuda.capabilities import keeps_graphs
from cgtool.devices.cuda.cupti import CuptiUnavailable
from cgtool.devices.cuda.device import CudaDevice
from cgtool.devices.cuda.session import CudaSession
from cgtool.model.capture import Capture, Caveat
from cgtool.model.failure import machine, user_code
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.program.phases import seed_all, warmup_iters
from cgtool.program.workload import Workload

LAUNCHES = 20
"""Replays of each graph whose launch is timed on the host."""


def open_session(workload: Workload, options: CaptureOptions) -> CudaSession:
    """Choose device and stream. Raises CgtoolError for what this machine or PyTorch lacks."""
    if not keeps_graphs(torch):
        raise machine(
            f"PyTorch {torch.__version__} cannot keep a captured graph",
            why="cgtool reads the nodes of the template that CUDAGraph(keep_graph=True) keeps",
            fix="install torch 2.8 or later",
        )
    device = CudaDevice(options.device or "cuda")
    torch.cuda.set_device(device.index)
    priority = {"normal": 0, "high": -1}[options.stream]
    stream = torch.cuda.Stream(device.index, priority=priority)
    return CudaSession(workload, options, device=device, stream=stream)


def prepare(
    workload: Workload, options: CaptureOptions, progress: Progress
) -> tuple[CudaSession, int, list[Caveat]]:
    """Warm up, capture and instantiate: a session whose graphs can be replayed, the number of
    warm-up iterations, and caveats. Raises CgtoolError."""
    session = open_session(workload, options)
    seed_all(options.seed)
    iterations, note = warmup_iters(workload, options)
    caveats = [Caveat("warm-up", note)] if note else []
    with watch_annotations(options.annotations) as ranges:
        session.warm_up(iterations, ranges, progress)
        session.capture(ranges, progress)
    session.require_nodes()
    session.instantiate(progress)
    return session, iterations, caveats


def time_launches(session: CudaSession) -> list[tuple[int, ...]]:
    """Host time of single replays on an idle device, in ns, by graph in the order of capture.

    Raises CgtoolError when a replay fails.
    """
    times: list[list[int]] = [[] for _ in session.captured]
    try:
        for _ in range(LAUNCHES):
            for index, graph in enumerate(session.captured):
                session.device.synchronize()
                clock = time.perf_counter_ns()
                graph.graph.replay()
                times[index].append(time.perf_counter_ns() - clock)
        session.device.synchronize()
    except RuntimeError as error:
        raise _replay_failed(session, error) from error
    return [tuple(times_ns) for times_ns in times]


def _replay_failed(session: CudaSession, error: RuntimeError) -> Exception:
    """A replay ended with an error of the device: nothing can be read from it afterwards."""
    finding = explain(error, "replay")
    text = str(error).strip().splitlines()[0]
    frame = session.workload.entry_frame()
    return user_code(
        f"{session.workload.spec}: the graphs were captured, but a replay failed: {text}",
        frames=(frame,) if frame is not None else (),
        why=finding.reason
        if finding
        else "the device does not report which node of the graph failed",
        fix=(finding.fix if finding else None)
        or "run `cgtool verify ENTRY`, which compares a replay with eager, op by op; an index that "
        "grows with every call, as that of a cache does, runs out of bounds after some replays",
        phase="replay",
        findings=(finding,) if finding else (),
    )


def capture(
    workload: Workload, options: CaptureOptions, progress: Progress
) -> tuple[Capture, dict[str, str]]:
    """Capture a workload on a GPU: the capture, and the driver's DOT texts by part name.

    Raises CgtoolError when the user's code cannot be captured.
    """
    session, iterations, caveats = prepare(workload, options, progress)
    progress("replay")
    launches = time_launches(session)
    timed: node_times.NodeTimes | None = None
    if options.times:
        try:
            timed = node_times.record(session, progress)
        except CuptiUnavailable as error:
            caveats.append(Caveat("untimed", f"no node has a time: {error}"))
    progress("read nodes")
    captured, raw = assemble(session, warmup_iters=iterations, launch_ns=launches, caveats=caveats)
    if timed is not None:
        captured = timed.add(captured)
    if options.check_input_liveness:
        require_live_inputs(captured)
    return captured, raw
