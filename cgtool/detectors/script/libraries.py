"""Libraries beside PyTorch in a script's captures: cuBLAS, the driver, torch.compile, NCCL."""

from __future__ import annotations

import ast
import ctypes
import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from cgtool.detectors.script.check import Check
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.observe.compiled import left_alone
from cgtool.observe.frames import call_user
from cgtool.observe.script.state import Op, WatchedGraph
from cgtool.observe.source import tree_of
from cgtool.torch_compat.private import load_dynamo

CUBLAS_WORKSPACE_PER_GRAPH = code("cublas-workspace-per-graph")
DRIVER_SIDE_GRAPH_MEMORY = code("driver-side-graph-memory")
EXPANDABLE_SEGMENTS_SURPRISES = code("expandable-segments-surprises")
FIRST_COMPILE_IN_CAPTURE = code("first-compile-in-capture")
GRAPH_MEMORY_NOT_BUDGETED = code("graph-memory-not-budgeted")
HOST_CALLBACK_DEADLOCK = code("host-callback-deadlock")
SAME_STREAM_CUBLAS_WORKSPACE = code("same-stream-cublas-workspace")

_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear")
_STREAMS = 4
_OPS = 10_000
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The allocator reads the first that is set."""
_HOST_CALLS = ("cuLaunchHostFunc", "cudaLaunchHostFunc", "cuStreamAddCallback")


class Workspaces(Check):
    """cuBLAS workspaces: shared by graphs of one stream, or one for each of many streams."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch)
        self._users: list[WatchedGraph] = []
        self._gone: list[WatchedGraph] = []

    def captured(self, graph: WatchedGraph, op: Op, fresh: list[int]) -> None:
        if op.name.startswith(_MATMULS) and graph not in self._users:
            self._users.append(graph)

    def dropped(self, graph: WatchedGraph) -> None:
        if graph in self._users and graph.state == "captured":
            self._gone.append(graph)

    def replaying(self, graph: WatchedGraph) -> None:
        if self.watch.machine.simulated or graph not in self._users:
            return
        for other in self._gone:
            if other.stream == graph.stream and other.pool != graph.pool:
                later = max(other, graph, key=lambda one: one.number)
                self.watch.report(
                    SAME_STREAM_CUBLAS_WORKSPACE,
                    f"{graph.name} and {other.name}, which is gone, were captured on one stream "
                    "into pools of their own: they share a cuBLAS workspace",
                    later.frames,
                    phase="replay",
                )
                return

    def finish(self) -> None:
        if self.watch.machine.simulated:
            return
        alive = [one for one in self._users if one.live()]
        if len({one.stream for one in alive}) >= _STREAMS:
            self.watch.report(
                CUBLAS_WORKSPACE_PER_GRAPH,
                f"{len({one.stream for one in alive})} streams captured matrix products: each has "
                "a cuBLAS workspace of its own, for good",
                alive[-1].frames,
                phase="script",
            )
        total = sum(one.device_ops for one in self.watch.alive())
        if total >= _OPS:
            largest = max(self.watch.alive(), key=lambda one: one.device_ops)
            self.watch.report(
                DRIVER_SIDE_GRAPH_MEMORY,
                f"the graphs have {total} ops together: the driver keeps memory for each, which "
                "PyTorch does not count",
                largest.frames,
                phase="script",
            )


class Budget(Check):
    """Free memory that was asked for, and given away, before the captures."""

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        self._asked: tuple[tuple[Frame, ...], int, int] | None = None
        before = torch.cuda.mem_get_info

        @functools.wraps(before)
        def mem_get_info(*args: Any, **kwargs: Any) -> Any:
            found = call_user(before, *args, **kwargs)
            if self.watch.capture is None:
                allocated = int(torch.cuda.memory_allocated())
                self._asked = self.watch.place(), int(found[0]), allocated
            return found

        torch.cuda.mem_get_info = mem_get_info
        stack.callback(setattr, torch.cuda, "mem_get_info", before)

    def begun(self, graph: WatchedGraph) -> None:
        if self._asked is not None and len(self.watch.graphs) == 1:
            place, free, allocated = self._asked
            given = int(torch.cuda.memory_allocated()) - allocated
            if given * 2 > free:
                self.watch.report(
                    GRAPH_MEMORY_NOT_BUDGETED,
                    f"{given >> 20} of {free >> 20} MiB that were free here are given away before "
                    "the first capture",
                    place,
                    phase="script",
                )

    def ended(self, graph: WatchedGraph) -> None:
        setting = next((os.environ[one] for one in _SETTINGS if one in os.environ), "")
        if "expandable_segments:True" not in setting or self.watch.machine.simulated:
            return
        segments = [
            one
            for one in torch.cuda.memory_snapshot()
            if tuple(one.get("segment_pool_id", ())) == graph.pool
        ]
        if segments and not any(one.get("is_expandable") for one in segments):
            self.watch.report(
                EXPANDABLE_SEGMENTS_SURPRISES,
                "the allocator's settings ask for expandable segments, and the pool of the graph "
                "has none",
                set_at(graph.frames, _SETTINGS) or graph.frames,
                evidence=(setting,),
                phase="capture",
            )


def set_at(frames: tuple[Frame, ...], names: tuple[str, ...]) -> tuple[Frame, ...]:
    """The line of the script that last sets one of these keys, else the last that names one; ()
    for none."""
    tree = tree_of(frames[-1].file) if frames else None
    sets: list[int] = []
    says: list[int] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Constant) and node.value in names:
            says.append(node.lineno)
        elif isinstance(node, ast.Assign):
            keys = [one.slice for one in node.targets if isinstance(one, ast.Subscript)]
            if any(isinstance(one, ast.Constant) and one.value in names for one in keys):
                sets.append(node.lineno)
    lines = sets or says
    return (Frame(frames[-1].file, max(lines), frames[-1].function),) if lines else ()


class Calls(Check):
    """Calls that matter in a capture and that no op shows."""

    def __init__(self, watch: Any, stack: ExitStack) -> None:
        super().__init__(watch)
        looked_up = ctypes.CDLL.__getattr__

        def attribute(library: Any, name: str) -> Any:
            if name in _HOST_CALLS and self.watch.capture is not None:
                self.watch.report(
                    HOST_CALLBACK_DEADLOCK,
                    "the graph gets a node that calls back into the host",
                    self.watch.place(),
                    phase="capture",
                )
            found = looked_up(library, name)
            if name in _HOST_CALLS:
                # CDLL keeps what it looked up; the next call must come here too.
                library.__dict__.pop(name, None)
            return found

        ctypes.CDLL.__getattr__ = attribute  # type: ignore[method-assign]
        stack.callback(setattr, ctypes.CDLL, "__getattr__", looked_up)
        compile_it = torch.compile

        @functools.wraps(compile_it)
        def compiled(model: Any = None, **options: Any) -> Any:
            if model is None:
                return lambda function: compiled(function, **options)
            # Compiled under the watcher's mode it would be other code; it runs eagerly instead.
            load_dynamo()
            stack.enter_context(left_alone())
            made = call_user(compile_it, model, **options)
            return made if isinstance(model, torch.nn.Module) else self._first(made)

        if not self.watch.machine.simulated:
            torch.compile = compiled
            stack.callback(setattr, torch, "compile", compile_it)

    def _first(self, function: Callable[..., Any]) -> Callable[..., Any]:
        warm = False

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal warm
            if not warm and self.watch.capture is not None:
                self.watch.report(
                    FIRST_COMPILE_IN_CAPTURE,
                    "torch.compile compiles during the capture, because nothing called this before",
                    self.watch.place(),
                    phase="capture",
                )
            warm = True
            return call_user(function, *args, **kwargs)

        return call
