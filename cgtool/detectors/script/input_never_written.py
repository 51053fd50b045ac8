"""Static inputs that nothing writes from one replay to the next."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.analysis.units import count_text, names_text
from cgtool.detectors.reporting import Detector
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import NOTE
from cgtool.observe.raw_tensors import copies, unchanged
from cgtool.observe.script import events
from cgtool.observe.script.names import everything_named, stack_of
from cgtool.observe.script.state import ExternalUse, TensorKind, WatchedGraph
from cgtool.observe.tensors import DEVICE, key_of, tensors_in

INPUT_NEVER_WRITTEN = code("input-never-written")

_FEWEST = 3
"""Replays, and batches that are not read."""
_LOOKED_AT = 32
"""Replays of one graph before which is searched for batches."""
_MOST_BYTES = 64 << 20
"""Of inputs whose values are kept, to see what kernels outside PyTorch write."""
_SHOWN = 3


@dataclass(eq=False)
class _Inputs:
    """The inputs of one graph."""

    uses: dict[ExternalUse, str]
    """Those that nothing has written since its first replay, each with its name."""
    values: dict[ExternalUse, torch.Tensor]
    """Copies, as of the first replay."""
    time: int
    """Of the first replay."""
    written: list[str] = field(default_factory=list)
    """Names of the others."""
    place: Frames = ()
    """Of the last replay."""
    batches: Counter[Frames] = field(default_factory=Counter)
    """By the line that made them: tensors like an input that were made before a replay, and since
    the one before."""

    def forget_written(self, replays: int) -> None:
        """Inputs that were written since the first replay: by an op, or, as far as some of the
        replays show, by anything else."""
        is_compared = replays < _FEWEST or replays & (replays - 1) == 0
        for use in list(self.uses):
            write, tensor = use.buffer.last_write, use.tensor()
            is_written = write is not None and write.time > self.time
            if is_compared and not is_written:
                is_written = tensor is None or not unchanged(self.values[use], tensor)
            if is_written:
                self.written.append(self.uses.pop(use))

    @property
    def kinds(self) -> set[TensorKind]:
        return {(use.shape, self.values[use].dtype) for use in self.uses}


class NeverWritten(Detector):
    """Graphs that compute the same at each replay."""

    phase = "replay"

    def start(self) -> None:
        self._inputs: dict[WatchedGraph, _Inputs] = {}
        self._own: set[int | None] = set()
        """Keys of buffers of modules, gradients, and the state of optimizers."""
        self._random: set[WatchedGraph] = set()
        """Graphs that draw random numbers."""

    def on_module_runs(self, event: events.ModuleRuns) -> None:
        self._own.update(map(key_of, event.module.buffers(recurse=False)))

    def on_optimizer_steps(self, event: events.OptimizerSteps) -> None:
        # State that the first step makes is there as the second begins.
        self._own.update(map(key_of, tensors_in(list(event.optimizer.state.values()))))
        self._own.update(map(key_of, tensors_in(event.optimizer.param_groups)))

    def on_op_captured(self, event: events.OpCaptured) -> None:
        if torch.Tag.nondeterministic_seeded in getattr(event.op.func, "tags", ()):
            self._random.add(event.graph)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        if self.script.capture is not None or self.script.device.stream_is_captured():
            # Nothing may be read then.
            return
        if graph.replays == 0:
            self._watch(graph)
        inputs = self._inputs.get(graph)
        if inputs is None:
            return
        if graph.replays:
            inputs.forget_written(graph.replays)
            self._ask()
        if not inputs.uses:
            del self._inputs[graph]
            return
        inputs.place = self.script.place()
        last, unread = graph.last_replay, self.script.unread
        if last is not None and graph.replays < _LOOKED_AT and unread.kinds:
            inputs.batches.update(
                {
                    each.place
                    for each in unread.alive()
                    if last.time <= each.time and each.kind in inputs.kinds
                }
            )

    def _watch(self, graph: WatchedGraph) -> None:
        """Begin to watch a graph, unless something else than its inputs may change what it
        computes."""
        uses = list(graph.external.values())
        if graph.callable is not None or graph in self._random or not graph.only_ops:
            return
        names: dict[int | None, str] = {}
        for named in everything_named(stack_of(self.script.frame())):
            if isinstance(named.value, torch.Tensor):
                names.setdefault(key_of(named.value), f"`{named.text}`")
        own = self._own.union(*map(_with_gradient, uses))
        uses = [use for use in uses if use.buffer.key not in own and not use.first_is_write]
        is_fixed = all(use.buffer.place == DEVICE and not use.written for use in uses)
        tensors = {use: tensor for use in uses if (tensor := use.tensor()) is not None}
        is_small = sum(use.buffer.bytes for use in uses) <= _MOST_BYTES
        if uses and is_fixed and is_small and len(tensors) == len(uses):
            values = copies(tensors)
            texts = {use: names.get(use.buffer.key, "a tensor") for use in uses}
            self._inputs[graph] = _Inputs(texts, values, self.script.clock)
            self._ask()

    def _ask(self) -> None:
        """Have new tensors that are like an input noted."""
        self.script.unread.kinds = {
            kind for inputs in self._inputs.values() for kind in inputs.kinds
        }

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        if any(map(is_hazard, explain_findings(self.findings))):
            # That a name leads to another tensor, for instance.
            return
        for graph, inputs in self._inputs.items():
            if graph.replays >= _FEWEST:
                self._report(graph, inputs)

    def _report(self, graph: WatchedGraph, inputs: _Inputs) -> None:
        texts = [f"{name} {list(use.shape)}" for use, name in inputs.uses.items()]
        batches = [place for place, count in inputs.batches.items() if count >= _FEWEST]
        if inputs.kinds & self.script.unread.read_kinds:
            # What the script makes is for other code.
            batches = []
        if inputs.written and not batches:
            # A mask, or a table.
            return
        reason = (
            f"{count_text(graph.replays, 'replay')} of {graph.name} compute with the same values "
            f"of {names_text(texts, _SHOWN)}: nothing writes to them in between"
        )
        if inputs.written:
            reason += f", but to {names_text(inputs.written, _SHOWN)}"
        if batches:
            reason += (
                ", and nothing reads the tensors of that shape that are made before each replay"
            )
        self.report(
            INPUT_NEVER_WRITTEN,
            reason,
            inputs.place,
            evidence=tuple(f"made at {place[0].short}" for place in batches if place),
            # What is like a table may be for nothing.
            severity=None if batches and not inputs.written else NOTE,
            graphs=(graph,),
        )


def _with_gradient(use: ExternalUse) -> tuple[int | None, ...]:
    """The keys of a parameter and of its gradient; none of another tensor."""
    tensor = use.tensor()
    if not isinstance(tensor, torch.nn.Parameter):
        return ()
    gradient = tensor.grad
    return use.buffer.key, None if gradient is None else key_of(gradient)
