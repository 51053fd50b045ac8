"""``torch.cuda.CUDAGraph`` of the simulated device, for scripts that capture themselves.

PyTorch's ``torch.cuda.graph`` and ``torch.cuda.make_graphed_callables`` run on it unchanged. The
order of calls that it requires, and its errors, are those of aten/src/ATen/cuda/CUDAGraph.cpp.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Generator  # the class itself: a script sees torch.Generator replaced

from cgtool.detectors.capture_errors import (
    IN_A_CAPTURE,
    INSIDE_ANOTHER,
    NOT_NESTED,
    NOT_REPLAYED,
    ON_DEFAULT_STREAM,
    ONE_BY_ONE,
    OTHER_STREAM,
)
from cgtool.devices.simulated import stale_nodes
from cgtool.devices.simulated.device_model import Stream
from cgtool.devices.simulated.graph import CaptureRecorder, SimulatedGraph
from cgtool.devices.simulated.libraries import Handles
from cgtool.devices.simulated.memory import PrivatePool
from cgtool.devices.simulated.redirect import redirected
from cgtool.devices.simulated.script_device import PoolId, ScriptDevice, known
from cgtool.findings import code
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import Code, Finding
from cgtool.model.options import Progress
from cgtool.observe.annotations import Annotations
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.effects import written_by
from cgtool.observe.frames import Chains, here, package_part
from cgtool.observe.ops import OpCall, RootedModuleStack
from cgtool.observe.script.names import everything_named, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import generator_key, no_torch_function, pytree
from cgtool.torch_compat.storages import StorageRef, copy_bytes

API_ORDER_MISUSE = code("api-order-misuse")
CAPTURE_ENDED_ELSEWHERE = code("capture-ended-elsewhere")
RNG_UNREGISTERED_GENERATOR = code("rng-unregistered-generator")

_NO_CAPTURE = "Called CUDAGraph::{} without a preceding successful capture."


class ScriptRecorder(CaptureRecorder):
    """Records a capture that the script makes. Its effects on other memory are undone at the end,
    because a capture on a GPU computes nothing."""

    device: ScriptDevice

    def __init__(
        self,
        annotations: Annotations,
        device: ScriptDevice,
        pool: PrivatePool,
        generators: set[int],
    ) -> None:
        super().__init__({}, annotations, device, {})
        self.modules = RootedModuleStack(Chains())
        self._pool = pool
        self._generators = generators
        """Generators registered with the graph."""
        self._fresh: set[int] = set()
        """Storages made in this capture."""
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._drawn = torch.get_rng_state()
        self.modules.__enter__()

    def stop(self) -> None:
        """Undo the effects of the capture at its end."""
        self.modules.__exit__(None, None, None)
        with unobserved():  # by the recorder of `cgtool run`, which watches until the end
            for storage, before in self._before.values():
                copy_bytes(storage, before)
        # This may live on, and would own the storages.
        self._before.clear()
        torch.set_rng_state(self._drawn)

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        device = self.device
        if device.mode != "global" and device.in_other_thread:
            # Work of that thread's own, on a stream that is not captured.
            return self.run(func, args, kwargs)
        if device.ended_by and not device.on_host:
            raise device.ended()
        if not device.on_host:
            self._require_registered(call, args, kwargs)
        saved: list[int] = []
        # Work on the host is done while a stream captures, as always.
        for tensor in () if device.on_host else written_by(func, args, kwargs):
            key = key_of(tensor)
            if key is not None and key not in self._fresh and key not in self._before:
                storage = tensor.untyped_storage()
                before = torch.UntypedStorage(0)
                copy_bytes(before, storage)
                self._before[key] = (storage, before)
                saved.append(key)
                device.memory.hold_object(tensor)
        given = set(map(key_of, tensors_in((args, kwargs))))
        # What has died since the op before makes room for this one.
        device.memory.sweep()
        output = super().execute(call, func, args, kwargs)
        steps = self.graph.steps
        if steps and steps[-1].call is call and not steps[-1].is_captured:
            # It ran at once, and replays do not repeat it.
            for key in saved:
                del self._before[key]
            return output
        if not device.on_host:
            for tensor in tensors_in(output):
                key = key_of(tensor)
                if key is not None and key not in given and key not in self._fresh:
                    self._fresh.add(key)
                    device.memory.allocate(StorageRef(tensor), self._pool)
        device.captured(call, func, args, kwargs, output)
        return output

    def _require_registered(self, call: OpCall, args: Any, kwargs: Any) -> None:
        # Ops get a new Python object, of the base class, for the same generator.
        registered = (*self._generators, generator_key(torch.default_generator))
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Generator) and generator_key(leaf) not in registered:
                self.device.call, self.device.record = call, self.record
                try:
                    self.device.report(
                        RNG_UNREGISTERED_GENERATOR,
                        "a generator that is not registered with the graph draws random numbers "
                        "in it",
                    )
                finally:
                    self.device.call = None


class CUDAGraph:
    """Replaces ``torch.cuda.CUDAGraph``."""

    device: ScriptDevice
    annotations: Annotations
    generators: set[int]
    registered: list[torch.Generator]
    keep_graph = False
    _pool: PoolId | None = None
    _stream: Stream | None = None
    recorder: ScriptRecorder | None = None
    """The recorder of the capture in progress."""
    _graph: SimulatedGraph | None = None
    _has_exec = False
    _debug = False

    def __new__(cls, keep_graph: bool = False) -> CUDAGraph:
        graph = super().__new__(cls)
        graph.keep_graph = keep_graph
        graph.generators = set()
        graph.registered = []
        return graph

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.add(generator_key(generator))
        self.registered.append(generator)

    def capture_begin(
        self,
        pool: PoolId | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        device = self.device
        if self._has_exec or self._graph is not None:
            raise self._refused(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise self._refused(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        if device.current is device.default:
            raise self._refused(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)",
                reason=ON_DEFAULT_STREAM,
                fix=OTHER_STREAM,
            )
        if device.capturing:
            # notes/cuda: one capture at a time in a process.
            device.report(
                API_ORDER_MISUSE,
                "a capture begins while another is in progress"
                if device.in_other_thread
                else INSIDE_ANOTHER,
                fix=ONE_BY_ONE if device.in_other_thread else NOT_NESTED,
            )
        if pool is None:
            self._pool = device.new_pool()
        else:
            self._pool = device.add_pool((int(pool[0]), int(pool[1])))
        self._stream = device.current
        stale_nodes.mark_held(partial(_names_of_tensors, sys._getframe(1)))
        device.begin(device.current, "capture", capture_error_mode)
        device.ended_by = None
        device.memory.sweep()
        self.recorder = ScriptRecorder(
            self.annotations, device, device.pools[self._pool], self.generators
        )
        device.recorder = self.recorder

    def capture_end(self) -> None:
        device = self.device
        recorder = self.recorder
        if recorder is None or device.current is not self._stream:
            raise self._refused(
                "Capture must end on the same stream it began on.",
                CAPTURE_ENDED_ELSEWHERE,
                "the capture was ended on another stream than it began on (903)",
                "use the context manager torch.cuda.graph",
            )
        try:
            if not device.ended_by:
                device.check_joins()
            if device.ended_by:
                raise device.ended()
        finally:
            self.recorder = None
            device.recorder = None
            device.end()
            device.ended_by = None
            recorder.stop()
        self._graph = recorder.graph
        self._graph.stream_names = [stream.name for stream in device.streams]
        if not self._graph.nodes:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=_levels_of_ours(),
            )
        if not self.keep_graph:
            self._has_exec = True

    def instantiate(self) -> None:
        if not self.keep_graph:
            raise self._refused(
                "instantiate() is intended to be called by the user only when keep_graph=true"
            )
        if self._graph is None:
            raise self._refused("capture_end() must have been called before calling instantiate")
        self._has_exec = True

    def replay(self) -> None:
        if self._graph is None:
            raise self._refused(_NO_CAPTURE.format("replay"))
        self._has_exec = True
        if self.device.current_is_capturing:
            self.device.report(
                API_ORDER_MISUSE,
                IN_A_CAPTURE,
                fix=NOT_REPLAYED,
            )
        with unobserved(), no_torch_function():
            self._graph.replay()

    def reset(self) -> None:
        self._graph = None
        self._has_exec = False

    def pool(self) -> PoolId:
        if self._pool is None or self._graph is None:
            raise self._refused(_NO_CAPTURE.format("pool()"))
        return self._pool

    def enable_debug_mode(self) -> None:
        self._debug = True

    def debug_dump(self, debug_path: str) -> None:
        if not self._debug:
            raise self._refused(
                "CUDA Graphs debug not enabled, set with [graph].enable_debug_mode()"
            )
        raise self._no_handle()

    def raw_cuda_graph(self) -> int:
        if not self.keep_graph:
            raise self._refused(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized "
                "with keep_graph=true"
            )
        if self._graph is None:
            raise self._refused(
                "You cannot access the raw cudaGraph_t instance until capture_end() has been called"
            )
        raise self._no_handle()

    def raw_cuda_graph_exec(self) -> int:
        if not self._has_exec:
            raise self._refused(
                "You cannot access the raw cudaGraphExec_t instance until instantiate() has been "
                "called"
            )
        raise self._no_handle()

    def get_graph_data(self) -> dict[str, Any]:
        raise self._no_handle()

    def _refused(
        self,
        sentence: str,
        code: Code = API_ORDER_MISUSE,
        reason: str = "the methods of CUDAGraph were called in the wrong order",
        fix: str = "capture, then instantiate (with keep_graph=True), then replay; capture each "
        "graph once",
    ) -> RuntimeError:
        """PyTorch's error for a call in the wrong order; its finding is collected."""
        evidence = (f"RuntimeError: {sentence}",)
        finding = Finding(code, reason, here(3), phase="script", fix=fix, evidence=evidence)
        self.device.findings.add(finding)
        return known(RuntimeError(sentence))

    @staticmethod
    def _no_handle() -> CgtoolError:
        return user_code(
            "the script uses the driver's handle of a graph, which the simulated device does not "
            "have",
            frames=here(2),
            fix="run it on a machine with a GPU",
        )

    @property
    def nodes(self) -> int:
        """How many ops of the graph launch work."""
        return 0 if self._graph is None else len(self._graph.nodes)


class _Graph:
    """Replaces ``torch.accelerator.Graph``, with the other methods of ``CUDAGraph``."""

    def __new__(
        cls, keep_graph: bool = False, *, pool: Any = None, capture_error_mode: str = "default"
    ) -> Any:
        graph: Any = super().__new__(cls, keep_graph)  # type: ignore[call-arg]
        graph.graph_pool = pool
        graph.capture_error_mode = capture_error_mode
        return graph

    def capture_begin(self: Any) -> None:
        mode = "global" if self.capture_error_mode == "default" else self.capture_error_mode
        super().capture_begin(self.graph_pool, mode)  # type: ignore[misc]

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        self.capture_begin()

    def __exit__(self: Any, *_exc: object) -> None:
        self.capture_end()


def _levels_of_ours() -> int:
    """How far out of this file and the recorder's the program's own call is, for a warning."""
    frame, level = sys._getframe(1).f_back, 2
    while frame is not None and package_part(frame.f_code.co_filename).startswith("/cgtool/"):
        frame, level = frame.f_back, level + 1
    return level


@contextlib.contextmanager
def graphs_of(device: ScriptDevice) -> Iterator[None]:
    """PyTorch's capture functions, on graphs of the simulated device."""
    graphs: Any = torch.cuda.graphs

    with Patches() as patches:
        for owner in (torch.cuda, graphs):
            patches.set(owner, "CUDAGraph", device.graph_class)
        patches.replace(torch.accelerator, "Graph", type("Graph", (_Graph, device.graph_class), {}))
        patches.set(torch.cuda, "graph", graphs.graph)
        patches.set(torch.cuda, "make_graphed_callables", graphs.make_graphed_callables)
        patches.set(graphs.graph, "default_capture_stream", None)
        yield


def _names_of_tensors(frame: FrameType) -> dict[int, str]:
    """By identity of the tensor."""
    names: dict[int, str] = {}
    for named in everything_named(stack_of(frame)):
        if isinstance(named.value, torch.Tensor):
            names.setdefault(id(named.value), named.text)  # the nearest name counts
    return names


def check_script(
    path: str, arguments: tuple[str, ...], progress: Progress, device: ScriptDevice
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, what was looked at) of a script. Raises CgtoolError as ``run`` does."""
    # Not at the top: a program that is recorded needs the graphs, and none of the rules.
    from cgtool.detectors.script.run import run

    with watch_annotations() as annotations:
        own = {"device": device, "annotations": annotations}
        device.graph_class = type("CUDAGraph", (CUDAGraph,), own)
        device.handles = Handles()
        redirection, stale = redirected(device), stale_nodes.refused(device, None)
        with redirection, graphs_of(device), contextlib.closing(device), stale:
            script = ObservedScript(device, annotations)
            device.captured = script.captured_op
            _, looked_at = run(path, arguments, script, device.findings, progress)
            return device.findings.all(), looked_at
