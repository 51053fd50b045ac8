"""Verification on a GPU: the very graphs that ``cgtool capture`` makes, replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch

from cgtool.detectors.collect import at_call
from cgtool.detectors.errors import explain
from cgtool.devices.cuda import cupti
from cgtool.devices.cuda.addresses import require_live_inputs
from cgtool.devices.cuda.assemble import assemble
from cgtool.devices.cuda.backend import open_session
from cgtool.devices.cuda.capturing import (
    Captured,
    Recorded,
    capture_all,
    instantiate_all,
    node_count,
    warm_up,
)
from cgtool.devices.cuda.driver import capturing_graph, check, cu
from cgtool.devices.cuda.stamps import Launch, LaunchLog
from cgtool.findings.registry import code
from cgtool.jobs.verify.watching import strided, tensors, written
from cgtool.model.failure import EXIT_USER_CODE, CgtoolError
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.frames import call_op, frames_of
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.program.boundary import user_errors
from cgtool.program.inputs import seed_all
from cgtool.program.phases import Phases, name_of, roots_of, through, warmup_iters
from cgtool.program.workload import Part, Workload

INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")

_BLOCKS = 4096
"""Free blocks that are overwritten at most."""


class Cuda:
    """``Replayable`` on a GPU."""

    simulated = False

    def __init__(self, workload: Workload, options: CaptureOptions) -> None:
        self.workload = workload
        self.options = options
        self.session = open_session(workload, options)
        self._recorded: list[dict[str, Recorded]] = []
        self._pools: list[range] = []
        self._iterations = 0
        self._side = torch.cuda.Stream(self.session.device)

    def warm_up(self, progress: Progress) -> int:
        seed_all(self.options.seed)
        self._iterations, _ = warmup_iters(self.workload, self.options)
        with watch_annotations(self.options.annotations) as annotations:
            self._recorded = warm_up(self.session, self._iterations, annotations, progress)
        return self._iterations

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self.session.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            yield
        current.wait_stream(self._side)

    def capture(self, progress: Progress) -> None:
        with watch_annotations(self.options.annotations) as annotations:
            capture_all(self.session, self._recorded, annotations, progress)
        if not self.is_empty():
            instantiate_all(self.session, progress)
        pools = {tuple(one) for one in self.session.pool_ids}
        self._pools = [
            range(segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) in pools
        ]

    def graphs(self) -> list[Captured]:
        return self.session.captured

    def is_empty(self) -> bool:
        return not any(node_count(one) for one in self.session.captured)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.session.device)

    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return tensor.is_cuda and any(address in pool for pool in self._pools)

    def on_host(self, made: Any) -> bool:
        return not any(one.is_cuda for one in tensors(made))

    def random_state(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), torch.cuda.get_rng_state(self.session.device)]

    def set_random_state(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        torch.cuda.set_rng_state(states[1], self.session.device)

    def _launched(self, one: Captured) -> int:
        """Launches of the recorded warm-up in the phase of a graph."""
        return 0 if one.recorded is None else len(one.recorded.launches)

    def missed(self, parted: bool) -> list[Finding]:
        fewer = any(node_count(one) < self._launched(one) for one in self.session.captured)
        if not parted and not fewer:
            return []
        recorders: list[MissedRecorder] = []

        def make(annotations: Any, stream: Any) -> MissedRecorder:
            recorder = MissedRecorder(self.workload, annotations, stream.cuda_stream)
            recorders.append(recorder)
            return recorder

        with contextlib.suppress(CgtoolError, RuntimeError):
            _Again(self, make, MissedRecorder.watched)
        return [finding for one in recorders for finding in findings_of(one, sure_only=not parted)]

    def dead(self) -> list[Finding]:
        """Memory that captured nodes point into and that was freed; the graphs are of no use
        afterwards, since naming the workspaces of cuBLAS frees them."""
        try:
            found, _ = assemble(
                self.session,
                warmup_iters=self._iterations,
                launch_ns=[() for _ in self.session.captured],
                caveats=[],
            )
            require_live_inputs(found)
        except RuntimeError:
            # The nodes cannot be read: an earlier look at them has already failed.
            return []
        except CgtoolError as error:
            failure = error.failure
            if failure.exit_code != EXIT_USER_CODE:
                return []
            return [
                Finding(
                    INPUT_FREED_BEFORE_REPLAY, failure.what, failure.frames, phase=failure.phase
                )
            ]
        return []

    def spoil_free_memory(self) -> None:
        torch.cuda.synchronize(self.session.device)
        free = [
            (block["size"], segment["stream"])
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == (0, 0)
            and segment["device"] == self.session.device
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
        held = []
        with contextlib.suppress(torch.OutOfMemoryError):
            for size, handle in sorted(free, reverse=True)[:_BLOCKS]:
                # Free blocks belong to the stream that they were first allocated on.
                with torch.cuda.stream(self._stream(handle)):
                    held.append(
                        torch.empty(size, dtype=torch.uint8, device=f"cuda:{self.session.device}")
                    )
                    # NaN in every floating-point type, -1 in every signed one.
                    held[-1].fill_(0xFF)
        torch.cuda.synchronize(self.session.device)

    def _stream(self, handle: int) -> Any:
        if handle == 0:
            return torch.cuda.default_stream(self.session.device)
        return torch.cuda.ExternalStream(handle, self.session.device)

    def probe(self) -> _Probes:
        return _Probes(self)


class _Again:
    """Every graph captured once more, under a recorder, into a pool and on a stream of its own."""

    def __init__(
        self,
        target: Cuda,
        make: Callable[[Any, Any], Any],
        around: Callable[[Any], contextlib.AbstractContextManager[object]] = (
            lambda _recorder: contextlib.nullcontext()
        ),
    ) -> None:
        """``make`` gives the recorder of one capture, from the user's ranges and the stream;
        ``around`` is entered with it before the capture begins."""
        self.session = Phases(target.workload, target.options)
        self.graphs: list[Any] = []
        device = target.session.device
        stream = torch.cuda.Stream(device)
        pool = torch.cuda.graph_pool_handle()

        def run(part: Part, phase: str, index: int, body: Callable[[], Any]) -> Any:
            name = name_of(self.session, phase, index)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(device)
            with contextlib.ExitStack() as stack:
                annotations = stack.enter_context(watch_annotations(target.options.annotations))
                recorder = make(annotations, stream)
                stack.enter_context(around(recorder))
                stack.enter_context(user_errors(part, f"capture {name}", explain))
                stack.enter_context(
                    torch.cuda.graph(
                        graph,
                        pool=cast(Any, pool),
                        stream=stream,
                        capture_error_mode=target.options.capture_error_mode,
                    )
                )
                with recorder:
                    result = body()
            self.graphs.append(graph)
            return result

        through(self.session, run)


class _ProbeRecorder(OpRecorder):
    """Adds a copy of what each op wrote to the graph, while there is memory."""

    def __init__(self, target: Cuda, annotations: Any, budget: list[int]) -> None:
        super().__init__(roots_of(target.workload), annotations)
        self.target = target
        self.budget = budget
        self.seen: list[tuple[OpCall, list[torch.Tensor] | None]] = []

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        made = call_op(func, args, kwargs)
        if self.target.on_host(made if tensors(made) else args):
            return made
        results = written(func, args, made)
        if results is None:
            return made
        size = sum(one.nbytes for one in strided(results))
        kept = None
        if size <= self.budget[0]:
            self.budget[0] -= size
            with torch.no_grad():
                kept = [one.detach().clone() for one in results]
        self.seen.append((call, kept))
        return made


class _Probes:
    def __init__(self, target: Cuda) -> None:
        free, _ = torch.cuda.mem_get_info(target.session.device)
        # Half of it: the intermediates themselves need memory too.
        budget = [free // 2]
        self.record = Record()
        self._recorders: list[_ProbeRecorder] = []

        def make(annotations: Any, _stream: Any) -> OpRecorder:
            recorder = _ProbeRecorder(target, annotations, budget)
            recorder.record = self.record
            self._recorders.append(recorder)
            return recorder

        self._again = _Again(target, make)
        self.calls = [call for one in self._recorders for call, _ in one.seen]

    def replay(self) -> None:
        for graph in self._again.graphs:
            graph.replay()

    def values(self) -> list[list[torch.Tensor] | None]:
        return [kept for one in self._recorders for _, kept in one.seen]


KERNEL_ON_STREAM_ZERO = code("kernel-on-stream-zero")
SIDE_STREAM_NOT_FORKED = code("side-stream-not-forked")


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
    """That stream took part in the capture."""


class MissedRecorder(OpRecorder):
    """Runs inside a capture and compares launches with nodes, op by op."""

    def __init__(self, workload: Workload, annotations: Any, stream: int) -> None:
        """``stream`` is the handle of the capturing stream."""
        super().__init__(roots_of(workload), annotations)
        self.log = LaunchLog()
        self.log.recorder = self
        self.missed: list[Missed] = []
        self._stream = stream
        self._nodes = self._launches = 0

    def _count(self) -> int:
        graph = capturing_graph(self._stream)
        if graph is None:
            return self._nodes
        _, number = check("cuGraphGetNodes", cu.cuGraphGetNodes(graph, 0))
        return int(number)

    def _look(self, call: OpCall | None) -> None:
        """Hold what was launched since the last look against the nodes that were added."""
        nodes, launches = self._count(), self.log.count()
        made, asked = nodes - self._nodes, launches - self._launches
        if made < asked:
            self.missed.append(
                Missed(
                    call,
                    self.log.launches[self._launches] if asked else None,
                    asked,
                    made,
                    int(torch.cuda.current_stream().cuda_stream),
                    torch.cuda.is_current_stream_capturing(),
                )
            )
        self._nodes, self._launches = nodes, launches

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._look(None)
        made = call_op(func, args, kwargs)
        self._look(call)
        return made

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Launches are counted while entered, which is before the capture begins. Without CUPTI
        there are none to count, and nothing is found."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(cupti.CuptiUnavailable):
                stack.enter_context(cupti.watch_launches(self.log.launched))
            yield

    def __enter__(self) -> MissedRecorder:
        super().__enter__()
        # What the beginning of a capture adds by itself is not the user's.
        self._nodes, self._launches = self._count(), self.log.count()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        if exc[0] is None:
            self._look(None)


def findings_of(recorder: MissedRecorder, *, sure_only: bool) -> Iterator[Finding]:
    """``sure_only``: leave out what only the counts say."""
    for one in recorder.missed:
        # On a capturing stream only an op without a node is sure: cuDNN launches work there that
        # is counted, and makes none.
        if one.capturing and (sure_only or one.nodes):
            continue
        name = one.call.name if one.call is not None else "a kernel outside any op"
        on_side = not one.capturing and one.stream != 0
        where = "a stream that takes no part in the capture" if on_side else "the default stream"
        if one.capturing:
            where = "another stream than the current one"
        finding = Finding(
            SIDE_STREAM_NOT_FORKED if on_side else KERNEL_ON_STREAM_ZERO,
            f"{name} ran on {where}: at once, while the graph was captured, and in no replay",
            phase="capture",
            evidence=(f"{one.launches} launched, {one.nodes} nodes added",),
        )
        if one.call is not None:
            finding = at_call(finding, one.call, recorder.record)
        elif one.launch is not None:
            finding = Finding(
                finding.code,
                finding.reason,
                frames_of(one.launch.chain),
                module=one.launch.module[0] if one.launch.module else None,
                phase="capture",
                evidence=finding.evidence,
            )
        yield finding
