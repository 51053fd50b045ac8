"""A simulated capture: the op record, and its replay on the very storages that were recorded.

During capture every op runs once and is kept with its arguments and results. A replay runs the
record again with no Python of the user's: ops that write in place write in place again, results of
the others are written over the results that the capture saw. So frozen numbers stay frozen, a
rebound input is not seen, and an output is overwritten by the next replay, as on a GPU. (On a GPU
the capture itself computes nothing; here it does, and is undone by no one.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cgtool.record.ops import OpCall, OpRecorder
from cgtool.simulated.streams import Device, refuse

# Ops whose result depends on values on the device, so that the host must wait for them.
_SYNCHRONISING = {
    "aten::_local_scalar_dense": "reading a value of a tensor on the host (.item(), bool(), int())",
    "aten::nonzero": "nonzero(), whose shape depends on values,",
    "aten::masked_select": "masked_select(), whose shape depends on values,",
    "aten::_unique2": "unique(), whose shape depends on values,",
    "aten::unique_dim": "unique(), whose shape depends on values,",
    "aten::unique_consecutive": "unique_consecutive(), whose shape depends on values,",
    "aten::equal": "torch.equal()",
    "aten::bincount": "bincount(), whose shape depends on values,",
}
_LAUNCH_NOTHING = (
    "aten::empty", "aten::new_empty", "aten::detach", "aten::resize_", "aten::set_",
    "aten::lift_fresh", "profiler::", "prim::", "aten::_reshape_alias", "aten::is_",
    "aten::record_stream", "aten::_unsafe_view",
)  # fmt: skip
# Factories that allocate and do no more by their family name, but fill:
_FILLS = ("aten::empty_quantized",)


@dataclass(slots=True)
class Effect:
    """What an op does to memory, by its schema."""

    writes: bool
    view: bool


def effect_of(func: Any) -> Effect:
    """``writes``: it changes an argument; ``view``: its results alias arguments unchanged."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Effect(False, False)
    writes = any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)
    view = not writes and any(one.alias_info is not None for one in schema.returns)
    return Effect(writes, view)


@dataclass
class Step:
    """One op of the record."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[torch.Tensor]
    writes: bool


@dataclass
class SimulatedNode:
    """An op that would launch work."""

    call: OpCall
    stream: int
    """Index into ``SimulatedGraph.stream_names``."""
    dependencies: tuple[int, ...]
    shape: str


@dataclass
class SimulatedGraph:
    """What a capture leaves."""

    steps: list[Step] = field(default_factory=list)
    nodes: list[SimulatedNode] = field(default_factory=list)
    stream_names: list[str] = field(default_factory=list)

    def replay(self) -> None:
        """Run the record again, in order, on the recorded storages."""
        with torch.no_grad():
            for step in self.steps:
                made = step.func(*step.args, **step.kwargs)
                if step.writes:
                    continue
                fresh = [one for one in pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
                for old, new in zip(step.results, fresh, strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def _shape(tensors: list[torch.Tensor]) -> str:
    return ", ".join(
        f"{str(one.dtype).removeprefix('torch.')}[{','.join(map(str, one.shape))}]"
        for one in tensors[:3]
    )


class CaptureRecorder(OpRecorder):
    """Records a graph while the simulated device is capturing."""

    def __init__(self, roots: Any, annotations: Any, device: Device) -> None:
        super().__init__(roots, annotations)
        self.device = device
        self.graph = SimulatedGraph()
        self._effects: dict[Any, Effect] = {}

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._refuse(call, args)
        made = func(*args, **kwargs)
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = effect_of(func)
        results = [one for one in pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
        if effect.view or call.name.startswith("profiler::"):
            return made
        # Aliases of the results: what the caller does to its own tensor objects (set_, resize_,
        # requires_grad_) must not reach the record.
        with torch._C._DisableTorchDispatch():
            kept = [one.detach() for one in results]
            held_args, held_kwargs = pytree.tree_map_only(
                torch.Tensor, lambda one: one.detach(), (args, kwargs)
            )
        self.graph.steps.append(Step(func, held_args, held_kwargs, kept, effect.writes))
        # In-place _foreach ops return nothing, and launch all the same.
        if not call.name.startswith(_LAUNCH_NOTHING) and (results or effect.writes):
            self._node(call, results)
        return made

    def _node(self, call: OpCall, results: list[torch.Tensor]) -> None:
        stream = self.device.current
        if stream not in self.device.streams:
            stream = self.device.streams[0]
        node = len(self.graph.nodes)
        self.graph.nodes.append(
            SimulatedNode(
                call,
                self.device.streams.index(stream),
                tuple(sorted(stream.frontier)),
                _shape(results),
            )
        )
        stream.frontier = frozenset((node,))
        stream.used = call.chain

    def _refuse(self, call: OpCall, args: tuple[Any, ...]) -> None:
        what = _SYNCHRONISING.get(call.name.partition(".")[0])
        if call.name.startswith(("aten::index.Tensor", "aten::index_put")):
            indices = args[1] if len(args) > 1 else ()
            if any(
                isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8)
                for one in indices or ()
            ):
                what = "indexing with a boolean mask, whose shape depends on values,"
        if call.name.startswith("aten::repeat_interleave.Tensor"):
            what = "repeat_interleave() without output_size"
        if what is not None:
            refuse(self.device, what)
