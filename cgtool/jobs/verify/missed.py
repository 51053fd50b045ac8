"""Work that a capture does not take in: launched on a stream that is no part of it.

Launches are counted as CUPTI sees them, nodes as the graph has them. An op or a line with more
launches than nodes ran at once, during the capture, and runs in no replay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from cgtool.detectors.collect import at_call
from cgtool.devices.cuda import cupti
from cgtool.devices.cuda.driver import capturing_graph, check, cu
from cgtool.devices.cuda.stamps import Launch, LaunchLog
from cgtool.findings.registry import code
from cgtool.model.finding import Finding
from cgtool.observe.frames import frames_of
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.program.phases import roots_of
from cgtool.program.workload import Workload

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
        made = func(*args, **kwargs)
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
