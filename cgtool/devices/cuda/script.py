"""``cgtool check script.py`` on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.detectors.reporting import FindingLog
from cgtool.detectors.script.run import run
from cgtool.devices.cuda.driver import DriverError, captured_nodes
from cgtool.model.finding import Finding
from cgtool.model.options import Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.script.script import ObservedScript, Undoing
from cgtool.observe.tensors import on_host, place_of, tensors_in
from cgtool.torch_compat.allocator import memory_segments, pool_segments
from cgtool.torch_compat.private import (
    CAPTURING_QUERIES,
    CUDAGraphBase,
    end_allocate_to_pool,
    release_pool,
)
from cgtool.torch_compat.storages import StorageRef


class _Device:
    """A GPU, for the observers of a script (``observe.script.script.Device``)."""

    simulated = False

    def __init__(self) -> None:
        self.graph_class: Any = torch.cuda.CUDAGraph
        self.recorder: Any = None
        # PyTorch's own: the observers of a script replace the attributes.
        self.synchronize = torch.cuda.synchronize
        owner, name = CAPTURING_QUERIES[0]
        self.stream_is_captured: Callable[[], bool] = getattr(owner, name)

    def ran_on_host(self, values: Any) -> bool:
        tensors = list(tensors_in(values))
        return bool(tensors) and all(map(on_host, tensors))

    def place(self, tensor: torch.Tensor) -> str:
        return place_of(tensor)

    def address(self, storage: StorageRef) -> int:
        return storage.address

    def is_dead(self, ref: StorageRef) -> bool:
        return ref.expired()

    def run_again(self, run: Callable[[], None], recorder: Undoing) -> Callable[[], None]:
        """See ``observe.script.script.Device``: here in a capture, which launches nothing. What it
        writes on the host is undone, and so is what a capture that fails leaves behind."""
        graph, pool = CUDAGraphBase(), torch.cuda.graph_pool_handle()
        recorder.copies_device = False
        self.synchronize()
        before = self.recorder
        with _other_generator_state(), torch.cuda.stream(torch.cuda.Stream()):
            CUDAGraphBase.capture_begin(graph, pool=pool, capture_error_mode="thread_local")
            # The begin and the end run ops of their own.
            self.recorder = recorder
            try:
                run()
            finally:
                self.recorder = before
                try:
                    CUDAGraphBase.capture_end(graph)
                except RuntimeError:
                    _give_up(graph, pool)
                    raise
                finally:
                    recorder.undo()

        def launch() -> None:
            # The graph may copy from there.
            recorder.undo()
            CUDAGraphBase.replay(graph)

        return launch

    def pool_bytes(self, pool: tuple[int, int]) -> int:
        return sum(segment.bytes for segment in pool_segments(pool))

    def is_in_pool(self, address: int, pool: tuple[int, int]) -> bool:
        return any(
            0 <= address - segment["address"] < segment["total_size"]
            for segment in memory_segments(pool)
        )

    def reset_frees_workspaces(self) -> bool:
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream), torch.no_grad():
                matrix = torch.ones(256, 256, device="cuda")
                matrix @ matrix
                graph = CUDAGraphBase()
                CUDAGraphBase.capture_begin(graph, pool=None, capture_error_mode="thread_local")
                product = matrix @ matrix
                CUDAGraphBase.capture_end(graph)
                before = torch.cuda.memory_allocated()
                CUDAGraphBase.reset(graph)
        except RuntimeError:
            # Typically an illegal memory access in one of the replays in question.
            return True
        freed = torch.cuda.memory_allocated() < before
        del product
        return freed

    def keeps_graph(self, graph: Any) -> bool:
        try:
            # Not the patched method of the class, whose errors are recorded.
            CUDAGraphBase.raw_cuda_graph(graph)
        except (RuntimeError, AttributeError):
            return False
        return True

    def generator_state(self) -> torch.Tensor:
        return torch.cuda.default_generators[torch.cuda.current_device()].get_state()

    def set_generator_state(self, state: torch.Tensor) -> None:
        torch.cuda.default_generators[torch.cuda.current_device()].set_state(state)

    def captured_nodes(self) -> int:
        try:
            return captured_nodes(self.stream())
        except DriverError:
            return 0

    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)


@contextlib.contextmanager
def _other_generator_state() -> Iterator[None]:
    """The default generator has an equal state of another object: a capture that fails leaves the
    state of each generator in capture mode, and then nothing draws from it any more."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


_failed: list[Any] = []
"""Graphs whose capture failed: an allocator may still ask each whether it captures a stream."""


def _give_up(graph: Any, pool: tuple[int, int]) -> None:
    """A capture has failed: its memory is no longer allocated from its pool, which is freed."""
    _failed.append(graph)
    device = torch.cuda.current_device()
    try:
        end_allocate_to_pool(device, pool)
    except RuntimeError:
        return  # it failed later, and the graph releases its pool
    release_pool(device, pool)


def check(
    path: str, arguments: tuple[str, ...], progress: Progress
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, what was looked at) of a script. Raises CgtoolError as ``run`` does."""
    torch.cuda.init()
    with watch_annotations() as annotations:
        script = ObservedScript(_Device(), annotations)
        findings, looked_at = run(path, arguments, script, FindingLog(), progress)
        return findings, looked_at
