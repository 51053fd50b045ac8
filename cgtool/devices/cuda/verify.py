"""Verification on a GPU, with the same capture as ``cgtool capture``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch

from cgtool.detectors.reporting import at_call
from cgtool.devices.cuda import cupti
from cgtool.devices.cuda.capture import assemble, open_session
from cgtool.devices.cuda.driver import captured_nodes
from cgtool.devices.cuda.memory import freed_uses
from cgtool.devices.cuda.session import CudaPhaseGraph, CudaSession
from cgtool.devices.cuda.stamps import Launch, LaunchLog
from cgtool.devices.cuda.stepping import CudaStepper, MemoryRecorder
from cgtool.devices.device import (
    CaptureWithDot,
    Device,
    Followed,
    VerifyTarget,
)
from cgtool.devices.stepping import Stepper
from cgtool.findings import code
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.frames import frames_of
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.tensors import strided_parts
from cgtool.program.workload import Workload
from cgtool.torch_compat.allocator import memory_segments
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.storages import StorageRef

INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
KERNEL_ON_STREAM_ZERO = code("kernel-on-stream-zero")
SIDE_STREAM_NOT_FORKED = code("side-stream-not-forked")


class CudaVerifyTarget(VerifyTarget):
    session: CudaSession

    def __init__(self, device: Device, workload: Workload, options: CaptureOptions) -> None:
        super().__init__(device, open_session(device, workload, options))
        self._pools: list[range] = []

    def capture(self, progress: Progress) -> None:
        self.session.follows_memory = self.follows_memory
        self.session.capture(progress)
        if not self.session.is_empty():
            self.session.instantiate(progress)
        self._pools = [
            range(segment["address"], segment["address"] + segment["total_size"])
            for segment in memory_segments()
            if tuple(segment["segment_pool_id"]) in self.session.pools
        ]

    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        addresses = [StorageRef(part).address for _, part in strided_parts(tensor)]
        return any(address in pool for address in addresses for pool in self._pools)

    def uncaptured_work(self, differs: bool) -> list[Finding]:
        fewer = any(
            graph.recorded is not None and graph.node_count() < len(graph.recorded.launches)
            for graph in self.session.graphs
        )
        if not differs and not fewer:
            return []
        recorders: list[MissedRecorder] = []

        @contextlib.contextmanager
        def observe(_graph: CudaPhaseGraph) -> Iterator[MissedRecorder]:
            make_recorder = partial(MissedRecorder, stream=again.stream.cuda_stream)
            with self.recording(make_recorder) as recorder, recorder.watched():
                recorders.append(recorder)
                yield recorder

        with contextlib.suppress(CgtoolError, RuntimeError):
            again = self._again()
            again.capture_phases(observe)
        return [
            finding
            for recorder in recorders
            for finding in findings_of(recorder, certain_only=not differs)
        ]

    def _make_steppers(self) -> list[Stepper]:
        return _steppers(self.session)

    def described(self) -> CaptureWithDot:
        return assemble(self.session, replayable=True)

    def _again(self) -> CudaSession:
        """A session for a second capture, with its own pool and stream."""
        return CudaSession(
            self.workload,
            msgspec.structs.replace(self.options, pool="shared"),
            device=self.device,
            stream=torch.cuda.Stream(self.device.index),
        )

    def freed_inputs(self, unexplained: bool) -> list[Finding]:
        """Memory that captured nodes point into and that was freed. The graphs cannot be replayed
        afterwards: finding the workspaces of cuBLAS frees them."""
        try:
            capture, _ = assemble(self.session)
        except (RuntimeError, CgtoolError):
            # The nodes cannot be read; an earlier attempt has reported that.
            return []
        uses = sorted(freed_uses(capture), key=lambda use: not use.is_certain)
        return [
            Finding(
                INPUT_FREED_BEFORE_REPLAY,
                use.text,
                use.frames,
                phase=f"capture {use.graph.name}",
            )
            for use in uses[:1]
            if use.is_certain or unexplained
        ]

    def followed(self) -> Followed:
        if self.follows_memory:
            return Followed(self.session.exact_record, self.session, self.steppers)
        again = self._again()

        @contextlib.contextmanager
        def observe(graph: CudaPhaseGraph) -> Iterator[MemoryRecorder]:
            make_recorder = partial(
                MemoryRecorder,
                device=self.device.index,
                stream=again.stream.cuda_stream,
                accesses=None,
            )
            with self.recording(make_recorder) as recorder:
                recorder.record, recorder.ops = again.exact_record, graph.ops
                yield recorder

        again.capture_phases(observe)
        return Followed(again.exact_record, again, _steppers(again))


def _steppers(session: CudaSession) -> list[Stepper]:
    steppers: list[Stepper] = []
    # Jobs restore state there: a node on a stream of its own would not wait for that.
    stream = torch.cuda.current_stream(session.device.index)
    for graph in session.graphs:
        own = stream, session.pools, graph.ops, graph.graph
        try:
            steppers.append(CudaStepper(graph.template, *own))
        except RuntimeError as error:
            raise user_code(f"{graph.name} cannot be run node by node: {error}") from error
    return steppers


@dataclass
class Missed:
    """One op, or the launches between two ops."""

    call: OpCall | None
    launch: Launch | None
    launches: int
    nodes: int
    stream: int
    """Handle of the stream that was current; 0 is the default one."""
    capturing: bool
    """Whether that stream takes part in the capture."""


class MissedRecorder(OpRecorder):
    """Compares launches with nodes inside a capture, op by op."""

    def __init__(self, roots: Any, annotations: Any, stream: int) -> None:
        """``stream`` is the handle of the capturing stream."""
        super().__init__(roots, annotations)
        self.log = LaunchLog()
        self.log.recorder = self
        self.missed: list[Missed] = []
        self._stream = stream
        self._nodes = self._launches = 0

    def _look(self, call: OpCall | None) -> None:
        """Compare the launches since the last call with the nodes that were added."""
        # After the end of the capture its nodes are no longer counted.
        nodes, launches = captured_nodes(self._stream) or self._nodes, self.log.count()
        added, launched = nodes - self._nodes, launches - self._launches
        if added < launched:
            self.missed.append(
                Missed(
                    call,
                    self.log.launches[self._launches] if launched else None,
                    launched,
                    added,
                    int(torch.cuda.current_stream().cuda_stream),
                    torch.cuda.is_current_stream_capturing(),
                )
            )
        self._nodes, self._launches = nodes, launches

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        self._look(None)
        output = self.run(func, args, kwargs)
        self._look(call)
        return output

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count launches while entered; to be entered before the capture begins. Without CUPTI no
        launch is counted, and nothing is found."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(cupti.CuptiUnavailable):
                stack.enter_context(cupti.watch_launches(self.log.launched))
            yield

    def __enter__(self) -> MissedRecorder:
        super().__enter__()
        # Nodes added at the begin of a capture are not the user's.
        self._nodes, self._launches = captured_nodes(self._stream), self.log.count()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        if exc[0] is None:
            self._look(None)


def findings_of(recorder: MissedRecorder, *, certain_only: bool) -> Iterator[Finding]:
    """``certain_only``: without findings that rest on counts alone."""
    for launch in recorder.missed:
        # On a capturing stream only an op without any node is certain: cuDNN makes calls there that
        # count as launches and add no node.
        if launch.capturing and (certain_only or launch.nodes):
            continue
        name = launch.call.name if launch.call is not None else "a kernel outside any op"
        finding_code, where = KERNEL_ON_STREAM_ZERO, "the default stream"
        if launch.capturing:
            where = "a stream other than the current one"
        elif launch.stream != 0:
            finding_code = SIDE_STREAM_NOT_FORKED
            where = "a stream that is not part of the capture"
        finding = Finding(
            finding_code,
            f"{name} ran on {where}: once, during the capture, and not in replays",
            phase="capture",
            evidence=(f"{launch.launches} launched, {launch.nodes} nodes added",),
        )
        if launch.call is not None:
            finding = at_call(finding, launch.call, recorder.record)
        elif launch.launch is not None:
            finding = msgspec.structs.replace(
                finding,
                frames=frames_of(launch.launch.chain),
                module=launch.launch.module[0] if launch.launch.module else None,
            )
        yield finding
