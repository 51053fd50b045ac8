"""Verification on the simulated device: graphs replay on CPU tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from cgtool.detectors.errors import explain
from cgtool.detectors.streams import capturing
from cgtool.devices.simulated.backend import Captured, Session, capture_all
from cgtool.devices.simulated.graph import CaptureRecorder, RandomStates, SimulatedGraph
from cgtool.devices.simulated.streams import Device
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.launches import effect_of
from cgtool.observe.ops import OpCall, Record
from cgtool.observe.storage import strided_parts
from cgtool.program.boundary import user_errors
from cgtool.program.inputs import seed_all
from cgtool.program.phases import Phases, name_of, roots_of, through, warm_up, warmup_iters
from cgtool.program.workload import Part, Workload
from cgtool.torch_compat.private import pytree, schema_of


class Simulated:
    """``Replayable`` on CPU tensors."""

    simulated = True

    def __init__(self, device: Device, workload: Workload, options: CaptureOptions) -> None:
        self.workload = workload
        self.options = options
        self.session = Session(device, workload, options)
        self._made: set[int] = set()

    def warm_up(self, progress: Progress) -> int:
        seed_all(self.options.seed)
        iterations, _ = warmup_iters(self.workload, self.options)
        warm_up(self.session, iterations, progress, explain)
        return iterations

    def beside(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def capture(self, progress: Progress) -> None:
        with watch_annotations(self.options.annotations) as annotations:
            capture_all(self.session, annotations, progress)
        for one in self.session.captured:
            for step in one.graph.steps:
                if schema_of(step.func) is not None and not effect_of(step.func).writes:
                    self._made |= {
                        part.untyped_storage().data_ptr()
                        for each in step.results
                        for _, part in strided_parts(each)
                    }

    def graphs(self) -> list[Captured]:
        return self.session.captured

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def in_graph_memory(self, tensor: torch.Tensor) -> bool:
        return any(
            part.untyped_storage().data_ptr() in self._made for _, part in strided_parts(tensor)
        )

    def on_host(self, made: Any) -> bool:
        return self.session.device.on_host

    def random_state(self) -> list[torch.Tensor]:
        return [torch.default_generator.get_state()]

    def set_random_state(self, states: list[torch.Tensor]) -> None:
        torch.default_generator.set_state(states[0])

    def is_empty(self) -> bool:
        return not any(one.graph.nodes for one in self.session.captured)

    def missed(self, parted: bool) -> list[Finding]:
        """None: the capture refuses what would miss the graph."""
        return []

    def dead(self) -> list[Finding]:
        """None: the record keeps what it reads."""
        return []

    def spoil_free_memory(self) -> None:
        """Memory that the host freed is not the graph's: its record keeps what it reads."""

    def probe(self) -> _Probes:
        return _Probes(self)


class _ProbeRecorder(CaptureRecorder):
    """Knows which steps belong to which op."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.owners: list[OpCall] = []

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        made = super().execute(call, func, args, kwargs)
        self.owners += [call] * (len(self.graph.steps) - len(self.owners))
        return made


class _Probes:
    """Every graph captured again; replays go step by step and look at what each step wrote."""

    def __init__(self, target: Simulated) -> None:
        device = target.session.device
        stream = device.stream_class(name="capture stream")
        states = RandomStates()
        self.record = Record()
        self._recorders: list[_ProbeRecorder] = []
        self._session = Phases(target.workload, target.options)

        def run(part: Part, phase: str, index: int, body: Callable[[], Any]) -> Any:
            name = name_of(self._session, phase, index)
            with (
                watch_annotations(target.options.annotations) as annotations,
                user_errors(part, f"capture {name}", explain),
                capturing(device, stream, f"capture {name}"),
            ):
                recorder = _ProbeRecorder(roots_of(target.workload), annotations, device, states)
                recorder.record = self.record
                with recorder:
                    result = body()
            self._recorders.append(recorder)
            return result

        through(self._session, run)
        self._values: list[list[torch.Tensor] | None] = []
        self.calls = [call for one in self._recorders for call in one.owners]

    def replay(self) -> None:
        self._values = []
        for recorder in self._recorders:
            for step in recorder.graph.steps[: len(recorder.owners)]:
                SimulatedGraph(steps=[step]).replay()
                with torch.inference_mode():
                    written = step.results or [
                        one
                        for one in pytree.tree_leaves(step.args[:1])
                        if isinstance(one, torch.Tensor)
                    ]
                    self._values.append([one.clone() for one in written])

    def values(self) -> list[list[torch.Tensor] | None]:
        return self._values
