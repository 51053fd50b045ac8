"""``torch.cuda.CUDAGraph`` of the simulated device, for scripts that capture themselves.

PyTorch's ``torch.cuda.graph`` and ``torch.cuda.make_graphed_callables`` run on it unchanged. The
order of calls that it requires, and its errors, are those of aten/src/ATen/cuda/CUDAGraph.cpp.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from cgtool.devices.simulated.device_model import Stream
from cgtool.devices.simulated.graph import SimulatedGraph
from cgtool.devices.simulated.memory import PrivatePool
from cgtool.devices.simulated.recording import Owners, Places, ScriptRecorder
from cgtool.devices.simulated.script_device import PoolId, ScriptDevice, known
from cgtool.findings.registry import code
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import Code, Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import here
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import generator_key, no_torch_function

API_ORDER_MISUSE = code("api-order-misuse")
CAPTURE_ENDED_ELSEWHERE = code("capture-ended-elsewhere")

_NO_CAPTURE = "Called CUDAGraph::{} without a preceding successful capture."


class CUDAGraph:
    """Replaces ``torch.cuda.CUDAGraph``."""

    device: ScriptDevice
    owners: Owners
    places: Places
    annotations: Annotations

    def __new__(cls, keep_graph: bool = False) -> CUDAGraph:
        graph = super().__new__(cls)
        graph.keep_graph = keep_graph
        graph._pool = None
        graph._stream = None
        graph._recorder = None
        graph._graph = None
        graph._has_exec = False
        graph._debug = False
        graph.generators = set()
        graph._registered = []
        return graph

    keep_graph: bool
    _pool: PoolId | None
    _stream: Stream | None
    _recorder: ScriptRecorder | None
    _graph: SimulatedGraph | None
    _has_exec: bool
    _debug: bool
    generators: set[int]
    _registered: list[torch.Generator]

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.add(generator_key(generator))
        self._registered.append(generator)

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
                "it's ok to replay them on the default stream.)"
            )
        if device.capturing:
            # notes/cuda: one capture at a time in a process.
            device.report(
                API_ORDER_MISUSE,
                "a capture begins while another is in progress",
                fix="capture one graph after the other",
            )
        if pool is not None and tuple(pool) not in device.pools:
            device.pools[tuple(pool)] = PrivatePool(0x10_0000_0000 * (len(device.pools) + 1))  # type: ignore[index]
        self._pool = device.new_pool() if pool is None else (int(pool[0]), int(pool[1]))
        self._stream = device.current
        device.begin(device.current, "capture")
        device.invalid = False
        self.places.sweep()
        self._recorder = ScriptRecorder(
            self.annotations,
            device,
            self.owners,
            self.places,
            device.pools[self._pool],
            self.generators,
        )
        device.recorder = self._recorder

    def capture_end(self) -> None:
        device = self.device
        recorder = self._recorder
        if recorder is None or device.current is not self._stream:
            raise self._refused(
                "Capture must end on the same stream it began on.", CAPTURE_ENDED_ELSEWHERE
            )
        try:
            if not device.invalid:
                device.check_joins()
            if device.invalid:
                raise device.ended()
        finally:
            self._recorder = None
            device.recorder = None
            device.end()
            device.invalid = False
            recorder.stop()
        self._graph = recorder.graph
        self._graph.stream_names = [stream.name for stream in device.streams]
        if not self._graph.nodes:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=2,
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
                "a graph is replayed while a stream is capturing",
                fix="replay it outside the capture",
            )
        with unobserved(), no_torch_function():
            self._graph.replay()

    def reset(self) -> None:
        if self._graph is not None:
            for step in self._graph.steps:
                self.owners.hold((step.args, step.kwargs, step.results), -1)
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

    def __del__(self) -> None:
        self.reset()

    def _refused(self, sentence: str, code: Code = API_ORDER_MISUSE) -> RuntimeError:
        """PyTorch's error for a call in the wrong order; its finding is collected."""
        self.device.findings.add(
            Finding(
                code,
                "the methods of CUDAGraph were called in the wrong order"
                if code == API_ORDER_MISUSE
                else "the capture was ended on another stream than it began on (903)",
                here(3),
                phase="script",
                fix="capture, then instantiate (with keep_graph=True), then replay; one capture a "
                "graph"
                if code == API_ORDER_MISUSE
                else "use the context manager torch.cuda.graph",
                evidence=(f"RuntimeError: {sentence}",),
            )
        )
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
