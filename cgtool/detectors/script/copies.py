"""Copies into static inputs: data of another shape, or more than the graph computes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import torch

from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import NOTE, WARNING
from cgtool.observe.script import events

INPUT_COPY_DOMINATES = code("input-copy-dominates")
REPLAY_WITH_OTHER_SHAPE = code("replay-with-other-shape")

_MEANT_FOR_ALL = (
    "if it is meant for all, copy `source.expand_as(input)`, which says so; otherwise write it "
    "into the head of the buffer and reset the rest"
)
_REPLAYS = 3
"""Replays with a large copy before there is a finding."""
_LARGE_COPY_BYTES = 8 << 20


@dataclass
class _Line:
    """The copies of one line into static inputs."""

    frames: Frames = ()
    """Line of the first copy that broadcasts."""
    shapes: tuple[list[int], list[int]] = ([], [])
    """Shapes of its source and of the tensor that it fills."""
    broadcasts: int = 0
    full: int = 0
    """Copies between equal shapes."""


class Copies(Detector):
    """The copies between one replay and the next."""

    def start(self) -> None:
        self._copied: dict[int, tuple[int, Frames]] = {}
        """By key of a static input: size and line of the last copy since a replay."""
        self._heavy: Counter[int] = Counter()
        """By number of the graph: replays after a copy that costs more than the graph."""
        self._lines: defaultdict[tuple[str, int] | None, _Line] = defaultdict(_Line)

    def on_eager_op(self, event: events.EagerOp) -> None:
        copied = event.op.copied(event.result) if event.op.name == "aten::copy_" else None
        target = None if copied is None else copied[1]
        buffer = None if target is None else self.script.buffers.find(target)
        if copied is None or buffer is None or buffer.place == "pinned":
            return
        if any(buffer.key in graph.external for graph in self.script.replayable()):
            self._copied[buffer.key] = copied[1].nbytes, self.script.place()
            self._look_at_shapes(*copied)

    def _look_at_shapes(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """A short batch that fills the whole input; or one row that is meant for all."""
        if not source.dim() or source.dim() != target.dim():
            return
        frames = self.script.place()
        line = self._lines[(frames[0].file, frames[0].line) if frames else None]
        if source.shape == target.shape:
            line.full += 1
            return
        if not line.broadcasts:
            line.frames, line.shapes = frames, (list(source.shape), list(target.shape))
        line.broadcasts += 1

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        for line in self._lines.values():
            source, target = line.shapes
            severity: str | None = WARNING if line.broadcasts == 1 else NOTE
            evidence = () if line.broadcasts == 1 else ("this line broadcasts each time",)
            if line.full:
                severity, evidence = None, (f"this line has also copied {target}",)
            if line.broadcasts:
                self.report(
                    REPLAY_WITH_OTHER_SHAPE,
                    f"`copy_` broadcasts {source} to a static input of {target}",
                    line.frames,
                    fix=None if line.full else _MEANT_FOR_ALL,
                    evidence=evidence,
                    severity=severity,
                )

    def on_replay_ended(self, event: events.ReplayEnded) -> None:
        graph = event.graph
        copied = [self._copied.pop(key) for key in graph.external.keys() & self._copied.keys()]
        total = sum(size for size, _ in copied)
        if total >= _LARGE_COPY_BYTES and graph.device_ops <= 2:
            self._heavy[graph.number] += 1
            if self._heavy[graph.number] == _REPLAYS:
                self.report(
                    INPUT_COPY_DOMINATES,
                    f"{total >> 20} MiB are copied for a graph of {graph.device_ops} ops",
                    max(copied, key=lambda each: each[0])[1],
                )
