"""A GPU: its streams, generators and free memory, and what jobs do on it.

A method imports what it needs: a capture does not wait for the rules of ``check``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch

from cgtool.devices.cuda.environment import environment
from cgtool.devices.device import CaptureWithDot, Checked, Device, VerifyTarget
from cgtool.model.capture import Environment
from cgtool.model.options import CaptureOptions, Progress
from cgtool.program.workload import Workload
from cgtool.torch_compat.allocator import SMALL_REQUEST, memory_segments
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import pytree
from cgtool.torch_compat.streams import make_streams_observable

_MOST_BLOCKS = 4096
"""Maximum number of free blocks to overwrite."""


class CudaDevice(Device):
    """One CUDA device. CUDA is initialized by the first use of ``index``, never before the user's
    file was loaded."""

    def __init__(self, factory_device: str = "cuda") -> None:
        """``factory_device``: ``cuda`` or ``cuda:N``."""
        self.factory_device = factory_device

    @contextlib.contextmanager
    def observable(self) -> Iterator[None]:
        from cgtool.torch_compat.op_key import watch_new_threads

        with Patches() as patches, watch_new_threads():
            make_streams_observable(patches)
            yield

    def capture(
        self, workload: Workload, options: CaptureOptions, progress: Progress
    ) -> CaptureWithDot:
        from cgtool.devices.cuda.capture import capture

        return capture(self, workload, options, progress)

    def check(
        self, workload: Workload, options: CaptureOptions, progress: Progress, dry_run_only: bool
    ) -> tuple[Checked, CaptureWithDot | None]:
        from cgtool.devices.cuda.check import check

        return check(self, workload, options, progress, dry_run_only)

    def check_script(self, path: str, arguments: tuple[str, ...], progress: Progress) -> Checked:
        from cgtool.devices.cuda.script import check

        if torch.device(self.factory_device).index is not None:
            torch.cuda.set_device(self.index)
        return check(path, arguments, progress)

    def verify_target(self, workload: Workload, options: CaptureOptions) -> VerifyTarget:
        from cgtool.devices.cuda.verify import CudaVerifyTarget

        return CudaVerifyTarget(self, workload, options)

    @cached_property
    def index(self) -> int:
        index = torch.device(self.factory_device).index
        return index if index is not None else torch.cuda.current_device()

    @cached_property
    def _side_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.index)

    def environment(self) -> Environment:
        return environment(self.index)

    @contextlib.contextmanager
    def eager_stream(self, stream: Any = None) -> Iterator[None]:
        stream = stream or self._side_stream
        current = torch.cuda.current_stream(self.index)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield
        current.wait_stream(stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def get_rng_state(self) -> list[torch.Tensor]:
        return [*super().get_rng_state(), torch.cuda.get_rng_state(self.index)]

    def set_rng_state(self, states: list[torch.Tensor]) -> None:
        super().set_rng_state(states)
        torch.cuda.set_rng_state(states[1], self.index)

    def is_host_work(self, values: Any) -> bool:
        return not any(
            isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in pytree.tree_leaves(values)
        )

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.index)
        return free

    def overwrite_free_memory(self, byte: int = 0xFF) -> None:
        def requests(size: int, segment_type: str) -> Iterator[int]:
            """That together get a free block of this size."""
            most = SMALL_REQUEST if segment_type == "small" else size
            for taken in range(0, size, most):
                yield min(most, size - taken)

        self.synchronize()
        free = [
            (size, segment["stream"])
            for segment in memory_segments()
            if tuple(segment["segment_pool_id"]) == (0, 0) and segment["device"] == self.index
            for block in segment["blocks"]
            if block["state"] == "inactive"
            for size in requests(block["size"], segment["segment_type"])
        ]
        held = []
        with contextlib.suppress(torch.OutOfMemoryError):
            for size, handle in sorted(free, reverse=True)[:_MOST_BLOCKS]:
                # Free blocks belong to the stream that they were first allocated on.
                stream: Any = torch.cuda.default_stream(self.index)
                if handle != 0:
                    stream = torch.cuda.ExternalStream(handle, self.index)
                with torch.cuda.stream(stream):
                    block = torch.empty(size, dtype=torch.uint8, device=f"cuda:{self.index}")
                    block.fill_(byte)
                    held.append(block)
        self.synchronize()
