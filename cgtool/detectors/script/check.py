"""One family of hazards: it is told what happens, and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cgtool.observe.script.state import Op, WatchedGraph

if TYPE_CHECKING:
    from cgtool.detectors.script.run import Watch


class Check:
    """Override what matters; everything else is ignored."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def begun(self, graph: WatchedGraph) -> None:
        """``capture_begin`` has returned."""

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        """An op was captured; ``fresh`` are the storages from outside that it is first to touch."""

    def warned(self, text: str) -> None:
        """PyTorch has warned in a captured backward, or as the capture ended."""

    def ended(self, graph: WatchedGraph) -> None:
        """``capture_end`` has returned."""

    def failed(self, graph: WatchedGraph, error: BaseException | None) -> None:
        """The capture has ended with an error."""

    def replaying(self, graph: WatchedGraph) -> None:
        """Just before a replay."""

    def replayed(self, graph: WatchedGraph) -> None:
        """Just after it."""

    def eager(self, op: Op) -> None:
        """An op outside captures that touches memory of some graph."""

    def waited(self, why: str, tensor: Any) -> None:
        """The host has waited for the device; ``tensor`` is what it reads, if it reads one."""

    def returned(self, tensor: Any) -> None:
        """A function of torch's has returned a tensor to the script."""

    def dropped(self, graph: WatchedGraph) -> None:
        """The graph was reset or has died."""

    def emptied(self) -> None:
        """The script has called ``torch.cuda.empty_cache()``."""

    def finish(self) -> None:
        """The script is over."""
