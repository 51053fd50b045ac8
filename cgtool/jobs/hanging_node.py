"""Names the node that hangs, for the message of a timeout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from cgtool.analysis.stepped import node_frames, node_text
from cgtool.devices.stepping import Stepper
from cgtool.model.capture import Capture
from cgtool.model.options import Progress

_SECONDS = 0.5


@contextlib.contextmanager
def watched(steppers: Sequence[Stepper], capture: Capture, progress: Progress) -> Iterator[None]:
    """In this block, a node that runs for about a second is reported as the phase. ``steppers``: of
    the first graphs of the capture."""
    ended = threading.Event()

    def watch() -> None:
        before = reported = None
        while not ended.wait(_SECONDS):
            now = next(
                (
                    (graph, stepper.now, stepper.runs)
                    for graph, stepper in enumerate(steppers)
                    if stepper.now is not None
                ),
                None,
            )
            if reported is not None and now != reported:
                progress("run nodes")
                reported = None
            elif now is not None and now == before and reported is None:
                progress(_described(capture, now[0], now[1]))
                reported = now
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _described(capture: Capture, index: int, node: int) -> str:
    """``node 17 of forward, `aten::mm`, model.py:12``."""
    graph = capture.graphs[index]
    frames = node_frames(capture, graph.nodes[node])
    line = f", {frames[0].short}" if frames else ""
    return node_text(capture, graph, graph.nodes[node]) + line
