"""``cgtool check script.py`` on a GPU."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.detectors import check_script
from cgtool.detectors.collect import Findings
from cgtool.detectors.script.run import Watch
from cgtool.devices.cuda import template
from cgtool.model.finding import Finding
from cgtool.model.options import Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.ops import OpRecorder
from cgtool.observe.script.device import CaptureWatcher


class _Machine:
    """A GPU, for the watcher."""

    simulated = False

    def __init__(self) -> None:
        self.graph_class: Any = torch.cuda.CUDAGraph
        self._recorder: CaptureWatcher | None = None

    @property
    def recorder(self) -> OpRecorder | None:
        return self._recorder

    @property
    def on_host(self) -> bool:
        return False

    def begun(self, watch: Watch) -> None:
        self.ended()
        self._recorder = CaptureWatcher(watch.annotations, watch.captured)

    def ended(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder = None

    def place(self, tensor: torch.Tensor) -> str:
        if tensor.is_cuda:
            return "device"
        return "pinned" if tensor.is_pinned() else "host"

    def address(self, storage: torch.UntypedStorage) -> int:
        return storage.data_ptr()

    def dead(self, ref: StorageWeakRef) -> bool:
        return bool(ref.expired())

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        return sum(
            int(one["total_size"])
            for one in torch.cuda.memory_snapshot()
            if tuple(one.get("segment_pool_id", ())) == pool
        )

    def keeps(self, graph: Any) -> bool:
        try:
            # Not the method of the class, whose errors the watcher reports.
            torch._C._CUDAGraph.raw_cuda_graph(graph)
        except (RuntimeError, AttributeError):
            return False
        return True

    def nodes(self) -> int:
        return template.nodes_of_capture(self.stream())

    def template(self, graph: Any) -> Hashable:
        try:
            return template.contents(torch._C._CUDAGraph.raw_cuda_graph(graph))
        except (RuntimeError, AttributeError):
            return None

    def modes_of_thread(self) -> list[Any]:
        return []

    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)


def check(
    path: str, arguments: tuple[str, ...], progress: Progress
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, what was looked at) of a script. Raises CgtoolError as ``hazards.script.run``."""
    torch.cuda.init()
    with watch_annotations() as annotations:
        watch = Watch(_Machine(), Findings(), annotations)
        return check_script.run(path, arguments, watch, progress)
