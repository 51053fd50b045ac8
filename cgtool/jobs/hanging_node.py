"""Names the node that hangs, for the message of a timeout."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from cgtool.devices.stepping import Stepper
from cgtool.model.options import Progress

_SECONDS = 0.5


@contextlib.contextmanager
def watched(
    steppers: Sequence[Stepper], describe: Callable[[int, int], str], progress: Progress
) -> Iterator[None]:
    """In this block, a node that runs for about a second is reported as the phase.

    ``describe``: its text, by the index of its graph and its own.
    """
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
                progress(describe(now[0], now[1]))
                reported = now
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
