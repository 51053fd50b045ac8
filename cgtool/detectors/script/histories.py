"""Lists of tensors that captured code moves on: replays read those that they held in the capture.

Multistep methods keep the last values in a list or a deque, and take the oldest out as they append
the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cgtool.detectors.frozen_values import FrozenValues
from cgtool.detectors.script.counted import without_frame
from cgtool.findings import code
from cgtool.observe.host_reads import Watched
from cgtool.observe.script.state import WatchedGraph

PYTHON_SIDE_EFFECTS_SKIPPED = code("python-side-effects-skipped")


class _History(NamedTuple):
    watched: Watched
    held: Any
    """The addresses of its tensors as the capture left it."""


class Histories:
    """The lists of each capture whose tensors its code reads and moves."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._histories: dict[int, list[_History]] = {}
        """By number of the graph."""

    def captured(self, graph: WatchedGraph, flows: FrozenValues) -> None:
        read = {use.data_ptr for use in graph.external.values() if not use.first_is_write}
        self._histories[graph.number] = [
            _History(without_frame(watched), _held(watched))
            for watched, moved in flows.reads.reordered()
            if not moved.isdisjoint(read)
        ]

    def replay_begins(self, graph: WatchedGraph) -> None:
        """Before the second replay: the first is the call that was captured."""
        if graph.last_replay is None:
            return
        for history in self._histories.pop(graph.number, ()):
            watched = history.watched
            # Where the script moves it on, it is bound to notice.
            if _held(watched) == history.held:
                self._report(
                    PYTHON_SIDE_EFFECTS_SKIPPED,
                    f"captured code moves the tensors of `{watched.use.text}`, and no replay does: "
                    "each reads those that it had in the capture",
                    (watched.frame,),
                    phase="replay",
                    fix="keep one tensor for each place of the list, and copy from place to place: "
                    "`older.copy_(newer)`",
                )


def _held(watched: Watched) -> Any:
    value = watched.value()
    return None if value is None else value.addresses
