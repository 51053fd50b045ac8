"""A loaded entry point: callables with their sample arguments, and the tensors that belong to
them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.nn.utils.rnn import PackedSequence

from cgtool.analysis.units import names_text
from cgtool.findings import code
from cgtool.model.capture import Frame, Frames
from cgtool.model.failure import CgtoolError, user_code
from cgtool.model.finding import Finding
from cgtool.observe.tensors import is_leaf
from cgtool.program.objects import attribute, is_a, type_name
from cgtool.program.reach import Reachable, reach
from cgtool.torch_compat.dispatch_keys import Args
from cgtool.torch_compat.private import is_fake, pytree

CPU_WORK_IN_REGION = code("cpu-work-in-region")
MULTI_DEVICE_CAPTURE = code("multi-device-capture")
Named = tuple[str, torch.Tensor]
"""A tensor and its name."""


Call = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""A callable: its name, itself, and its positional and keyword arguments."""


@dataclass(frozen=True)
class WorkloadPart:
    """One callable of a workload and the arguments to capture it with."""

    name: str
    """The name that a user would give it: ``TransformerBlock``, ``generator``, ``train_step``."""
    function: Callable[..., Any]
    args: Args = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    """Root modules that the callable runs, by path prefix: ``{"": model}`` when the callable is a
    module, ``{"net": net, "head": head}`` for modules that a function closes over."""
    frames: Frames = ()
    """Where the entry point is defined: for failures that no line of the user's is in."""
    prefix: str = ""
    """``generator: ``, before the names of its tensors, if there are several parts."""
    leaves: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Parameters that no module owns, and other leaf tensors that require grad, by the name in the
    function's code; held weakly, because the user's code may free them."""

    def parameters(self) -> list[Named]:
        """Named parameters that require grad, each once, in registration order; and ``leaves``."""
        parameters: dict[int, Named] = {}
        for prefix, module in self.modules.items():
            for name, parameter in below(prefix, module.named_parameters()):
                if parameter.requires_grad:
                    parameters.setdefault(id(parameter), (name, parameter))
        for name, leaf in self.leaves.items():
            parameters.setdefault(id(leaf), (name, leaf))
        return list(parameters.values())


@dataclass
class Workload:
    """Everything that the backends need to know; built by ``cgtool.program.load``."""

    spec: str
    kind: str
    """``callable`` (one, forward and maybe backward), ``callables`` (several that share a pool,
    forward in order, backward in reverse) or ``step`` (captured as it is)."""
    parts: tuple[WorkloadPart, ...]
    frame: Frame | None = None
    """Where the entry point is defined."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: which globals were used, where inputs came from."""
    refusals: tuple[CgtoolError, ...] = ()
    """Why it cannot be captured as it is, though it can run: only ``check`` goes on."""

    def add_parts(self, calls: Sequence[Call], device: str) -> None:
        """Add callables that are to be captured on ``device``, with what they reach; and notes and
        refusals. Raises CgtoolError (exit 4) for tensors without data."""
        frames = (self.frame,) if self.frame is not None else ()
        for call in calls:
            prefix = f"{call[0]}: " if len(calls) > 1 else ""
            part, notes = _make_part(call, prefix, device, frames)
            self.parts += (part,)
            self.notes += tuple(notes)
        _check_devices(self, device)

    def becomes_step(self, name: str, does: str) -> None:
        """Called when the callable ``name`` runs its backward itself: what it ``does`` for that."""
        if self.kind != "step":
            self.kind = "step"
            self.notes += (f"{name} {does} itself: it is captured as a whole step",)


_SHOWN = 5


def _make_part(
    call: Call, prefix: str, device: str, frames: Frames
) -> tuple[WorkloadPart, list[str]]:
    """The part with the modules that it reaches, and notes on these and on frozen arguments."""
    name, function, args, kwargs = call
    device_type = torch.device(device).type
    modules: dict[str, torch.nn.Module] = {}
    notes: list[str] = []
    reached = reach(function)
    leaves = {
        name: tensor
        for name, tensor in reached.tensors.items()
        if is_leaf(tensor) and tensor.requires_grad
    }
    for key, module in reached.modules.items():
        # A module on another device may have another purpose. If the function does run it, the
        # warm-up fails at its line.
        if key and any(each.device.type != device_type for each in module.parameters()):
            notes.append(
                f"{name} can reach the module {key}, which is left out: it is not on {device}"
            )
        else:
            modules[key] = module
    named = [key for key in modules if key]
    if named:
        many = "s" if len(named) > 1 else ""
        notes.append(
            f"{name} runs the module{many} {', '.join(named)}: found in its closure, its object or "
            "its globals"
        )
    # Arguments, nested ones too, whose later values a replay ignores.
    frozen = [
        f"{key}{pytree.keystr(path)} ({type_name(leaf)})"
        for key, value in (*enumerate(args), *kwargs.items())
        for path, leaf in pytree.tree_flatten_with_path(value)[0]
        if leaf is not None and not is_a(leaf, torch.Tensor | torch.Generator)
    ]
    if frozen:
        notes.append(
            f"{name}: the graph keeps the values of the arguments that are not tensors: "
            f"{names_text(frozen, _SHOWN)}"
        )
    held = WeakValueDictionary(leaves)
    return WorkloadPart(name, function, args, kwargs, modules, frames, prefix, held), notes


# --- tensors

_NESTED_OBJECTS = 8
_OWNERS = (torch.nn.Module, torch.optim.Optimizer, type, types.ModuleType, types.FunctionType)
"""Types of objects that another object refers to and does not consist of."""


def tensors_in(tree: Any, objects: bool = False) -> list[Named]:
    """Tensors of a nested structure with the path to each (``[0]``, ``['loss']``, ``.loss``).

    Containers are those of PyTorch's pytree, and what it takes for leaves: dataclasses, and
    subclasses of dictionaries, lists and tuples. With ``objects`` also the attributes of any other
    object, modules and optimizers aside.
    """
    return list(_tensors_in(tree, "", _NESTED_OBJECTS, objects, set()))


def _tensors_in(tree: Any, path: str, depth: int, objects: bool, seen: set[int]) -> Iterator[Named]:
    for keys, leaf in pytree.tree_flatten_with_path(tree)[0]:
        name = path + "".join(map(str, keys))
        if is_a(leaf, torch.Tensor):
            yield name, leaf
        elif depth and id(leaf) not in seen:
            seen.add(id(leaf))
            for suffix, part in _parts_of(leaf, objects):
                yield from _tensors_in(part, f"{name}{suffix}", depth - 1, objects, seen)


def _parts_of(leaf: Any, objects: bool) -> Iterator[tuple[str, Any]]:
    """The parts of a leaf of a pytree, read without its own methods."""
    if is_a(leaf, dict):
        yield from ((f"[{key!r}]", value) for key, value in dict.items(leaf))
    elif is_a(leaf, list | tuple):
        values = list.__iter__(leaf) if is_a(leaf, list) else tuple.__iter__(leaf)
        yield from ((f"[{index}]", value) for index, value in enumerate(values))
    elif attribute(type(leaf), "__dataclass_fields__") is not None and not is_a(leaf, type):
        for field_ in dataclasses.fields(leaf):
            yield f".{field_.name}", attribute(leaf, field_.name)
    elif objects and not is_a(leaf, _OWNERS):
        table = attribute(leaf, "__dict__")
        slots = attribute(type(leaf), "__slots__", ())
        names = [*table] if type(table) is dict else []
        names += [slots] if isinstance(slots, str) else slots
        yield from ((f".{name}", attribute(leaf, name)) for name in names)


def inputs_of(part: WorkloadPart) -> list[Named]:
    """The tensors among a part's arguments, named ``input 0``, ``input x``."""
    return [
        (f"input {key}{path}", tensor)
        for key, argument in (*enumerate(part.args), *part.kwargs.items())
        for path, tensor in tensors_in(argument)
    ]


def below(prefix: str, named: Iterable[Named]) -> Iterator[Named]:
    """The parameters or buffers of a module, by their paths below ``prefix``, which a program's own
    ``named_parameters`` need not take."""
    return ((f"{prefix}.{name}" if prefix else name, tensor) for name, tensor in named)


def reachable_from(workload: Workload) -> Reachable:
    """Everything that the callables and their arguments lead to."""
    roots: list[tuple[str, Any]] = []
    for part in workload.parts:
        roots += part.modules.items()
        roots += ("", part.function), ("argument", part.args), ("argument", dict(part.kwargs))
    return Reachable(roots)


# --- devices


def _check_devices(workload: Workload, device: str) -> None:
    """Add notes on scalar CPU tensors, whose values the graph keeps, and refusals (exit 4) for
    arguments and parameters on another device.

    Raises CgtoolError (exit 4) for those without data.
    """
    wanted = torch.device(device)
    notes, refusals = [], []
    for part in workload.parts:
        for name, tensor in _tensors_to_check(part):
            if tensor.is_meta or is_fake(tensor):
                kind = "on the meta device" if tensor.is_meta else "a FakeTensor"
                raise user_code(
                    f"{part.name}: {name} is {kind}: it has a shape but no data",
                    frames=part.frames,
                    why="a capture runs the code on real data",
                    fix="allocate it with module.to_empty(device=device) and load the weights, or "
                    "create it outside of the meta device and FakeTensorMode",
                    phase="load",
                )
            device_type, index = tensor.device.type, tensor.device.index
            any_index = wanted.type != "cuda" or wanted.index is None
            if device_type == wanted.type and (any_index or index == wanted.index):
                continue
            is_host_scalar = device_type == "cpu" and tensor.dim() == 0
            if is_host_scalar and workload.kind != "callables" and name.startswith("argument"):
                notes.append(
                    f"{part.name}: {name} is a scalar tensor on the CPU; the graph keeps its value"
                )
                continue
            elsewhere = f"{part.name}: {name} is on {tensor.device}, the capture is on {wanted}"
            why = "a CUDA graph contains only work of the device that it is captured on"
            fix = "create it with device=device, or move it with .to(device)"
            place = CPU_WORK_IN_REGION if device_type == "cpu" else MULTI_DEVICE_CAPTURE
            finding = Finding(place, f"{elsewhere}: {why}", part.frames, phase="load", fix=fix)
            refusals.append(
                user_code(
                    elsewhere,
                    frames=part.frames,
                    why=why,
                    fix=fix,
                    phase="load",
                    findings=(finding,),
                )
            )
    workload.notes += tuple(notes)
    workload.refusals = tuple(refusals)


def _tensors_to_check(part: WorkloadPart) -> list[tuple[str, torch.Tensor]]:
    """The arguments and parameters, by the names that messages use."""
    tensors = [
        (f"argument {key}{path}", tensor)
        for key, value in (*enumerate(part.args), *part.kwargs.items())
        for path, tensor in tensors_in(value)
        if all(tensor is not sizes for sizes in _batch_sizes(value))
    ]
    for prefix, module in part.modules.items():
        named = below(prefix, module.named_parameters())
        tensors += [(f"parameter {name}", each) for name, each in named]
    return tensors


def _batch_sizes(value: Any) -> list[torch.Tensor]:
    """The batch sizes of the PackedSequences in ``value``: on the CPU, whatever their device."""
    leaves = pytree.tree_leaves(value, is_leaf=lambda leaf: is_a(leaf, PackedSequence))
    return [leaf.batch_sizes for leaf in leaves if is_a(leaf, PackedSequence)]
