"""The tensors of a workload: outputs, what backward differentiates, and a name for each.

As in ``torch.cuda.make_graphed_callables``, backward runs from the outputs that require grad to the
inputs and parameters that do, with static incoming gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cgtool.model.failure import user_code
from cgtool.observe.frames import call_user
from cgtool.observe.storage import strided_parts
from cgtool.program.guarded_access import attribute, is_a
from cgtool.program.reach import reach
from cgtool.program.workload import Part, Workload
from cgtool.torch_compat.private import pytree

Named = tuple[str, torch.Tensor]
"""A tensor and its name."""
_NESTED_DATACLASSES = 8


def tensors_in(tree: Any, nested: int = _NESTED_DATACLASSES) -> list[Named]:
    """Tensors of a nested structure with the path to each (``[0]``, ``['loss']``, ``.loss``).

    Containers are those of PyTorch's pytree, and dataclasses, which are leaves of a pytree.
    """
    tensors: list[Named] = []
    leaves, _ = pytree.tree_flatten_with_path(tree)
    for path, leaf in leaves:
        key = "".join(map(str, path)).lstrip(".")
        if is_a(leaf, torch.Tensor):
            tensors.append((key, leaf))
        elif nested and attribute(type(leaf), "__dataclass_fields__") is not None:
            for field in dataclasses.fields(leaf):
                inner = tensors_in(attribute(leaf, field.name), nested - 1)
                tensors += [(f"{key}.{field.name}{rest}", tensor) for rest, tensor in inner]
    return tensors


def flatten_outputs(outputs: Any) -> list[Named]:
    """The tensors that a callable returned, named ``output``, ``output[1]``, ``output['loss']``."""
    return [(f"output{path}", tensor) for path, tensor in tensors_in(outputs)]


def address_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's storage; None without a storage of its own (sparse tensors,
    subclasses that wrap other tensors)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        # "Cannot access storage of SparseTensorImpl", "... of Storage that is invalid"
        return None


def inputs_of(part: Part) -> list[Named]:
    """The tensors among a part's arguments, named ``input 0``, ``input x``."""
    named = [
        (f"input {index}{path}", tensor)
        for index, argument in enumerate(part.args)
        for path, tensor in tensors_in(argument)
    ]
    named += [
        (f"input {name}{path}", tensor)
        for name, argument in part.kwargs.items()
        for path, tensor in tensors_in(argument)
    ]
    return named


@dataclass(frozen=True)
class Surface:
    """What ``torch.autograd.grad`` is called with."""

    outputs: tuple[Named, ...]
    inputs: tuple[Named, ...]


def _leaves_behind(tensors: Sequence[torch.Tensor]) -> set[int]:
    """``id`` of every leaf that backward from these tensors accumulates into."""
    leaves = {id(tensor) for tensor in tensors if tensor.grad_fn is None}
    pending: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(id(variable))
        pending.extend(following for following, _ in node.next_functions)
    return leaves


def _parameters_of(part: Part, outputs: Sequence[torch.Tensor]) -> list[Named]:
    """All parameters of a module; of a function, those that its outputs depend on, because it may
    reach a module by name and not run it."""
    parameters: list[Named] = list(part.parameters())
    if isinstance(part.function, torch.nn.Module) or not parameters:
        return parameters
    used = _leaves_behind(outputs)
    return [(name, parameter) for name, parameter in parameters if id(parameter) in used]


def differentiable(part: Part, outputs: list[Named]) -> Surface | None:
    """The outputs and inputs of backward, or None when no output requires grad.

    Raises CgtoolError when an output requires grad and no input or parameter does, so that there
    is nothing to differentiate with respect to.
    """
    needing_grad = tuple((name, tensor) for name, tensor in outputs if tensor.requires_grad)
    if not needing_grad:
        return None
    inputs: dict[int, Named] = {}
    parameters = _parameters_of(part, [tensor for _, tensor in needing_grad])
    for name, tensor in inputs_of(part) + parameters:
        if tensor.requires_grad:
            inputs.setdefault(id(tensor), (name, tensor))
    if not inputs:
        raise user_code(
            f"{part.name}: {needing_grad[0][0]} requires grad, but no input and no parameter that "
            "cgtool can reach does",
            why="backward is captured from the outputs to the inputs and parameters that require "
            "grad, and the tensors behind this output belong to neither",
            fix="pass the tensors as arguments or return the module that owns them from the "
            "factory; or capture the forward alone with --no-backward",
            phase="capture backward",
        )
    return Surface(needing_grad, tuple(inputs.values()))


def grad_outputs(surface: Surface) -> list[torch.Tensor]:
    """Static incoming gradients of ones, one per output, allocated outside the graph."""
    return [torch.ones_like(tensor) for _, tensor in surface.outputs]


def named_tensors(workload: Workload) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(name, kind, tensor) of everything that the workload owns before the capture.

    A tensor without a storage of its own is replaced by the tensors that it consists of.
    """
    for name, kind, tensor in _owned(workload):
        for suffix, part in strided_parts(tensor):
            yield f"{name}{suffix}", kind, part


def _owned(workload: Workload) -> Iterator[tuple[str, str, torch.Tensor]]:
    # What functions reach by name is looked up now and not at loading time: a tensor that the
    # user's code has freed since then must not be kept alive.
    several = len(workload.parts) > 1
    for part in workload.parts:
        where = f"{part.name}: " if several else ""
        names: dict[int, str] = {}
        for name, tensor in inputs_of(part):
            yield f"{where}{name}", "input", tensor
        for prefix, module in part.modules.items():
            start = f"{prefix}." if prefix else ""
            for name, parameter in module.named_parameters():
                names.setdefault(id(parameter), f"{start}{name}")
                yield f"{where}parameter {start}{name}", "parameter", parameter
                if parameter.grad is not None:
                    yield f"{where}gradient of {start}{name}", "gradient", parameter.grad
            for name, buffer in module.named_buffers():
                yield f"{where}buffer {start}{name}", "buffer", buffer
        reached = reach(part.function)
        for name, tensor in reached.tensors.items():
            yield f"{where}tensor {name}", "input", tensor
        for name, optimizer in reached.optimizers.items():
            for kind, label, tensor in _of_optimizer(name, optimizer, names):
                yield f"{where}{label}", kind, tensor


def _of_optimizer(
    name: str, optimizer: torch.optim.Optimizer, names: dict[int, str]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(kind, name, tensor): the state of each parameter, and parameters that no module has."""
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                yield "optimizer", f"{name} {key} of group {number}", value
        for index, parameter in enumerate(group["params"]):
            known = names.get(id(parameter))
            if known is None:
                known = f"{name}.param_groups[{number}]['params'][{index}]"
                yield "parameter", f"parameter {known}", parameter
                if parameter.grad is not None:
                    yield "gradient", f"gradient of {known}", parameter.grad
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield "optimizer", f"{name} {key} of {known}", value


def call(part: Part) -> Any:
    """Call a part with its sample arguments."""
    return call_user(part.function, *part.args, **part.kwargs)


def grads(
    surface: Surface, incoming: list[torch.Tensor], allow_unused: bool
) -> tuple[torch.Tensor | None, ...]:
    """Backward over the surface, as ``make_graphed_callables`` calls it.

    Raises CgtoolError that names the inputs that no output depends on, unless ``allow_unused``.
    """
    try:
        return call_user(
            torch.autograd.grad,
            outputs=tuple(tensor for _, tensor in surface.outputs),
            inputs=tuple(tensor for _, tensor in surface.inputs),
            grad_outputs=tuple(incoming),
            only_inputs=True,
            allow_unused=allow_unused,
        )
    except RuntimeError as error:
        if "not have been used in the graph" not in str(error):
            raise
        used = _leaves_behind([tensor for _, tensor in surface.outputs])
        unused = [name for name, tensor in surface.inputs if id(tensor) not in used]
        shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if unused[5:] else "")
        raise user_code(
            f"the outputs do not depend on {shown or 'some of the inputs'}",
            why="backward is captured to every input and parameter that requires grad, and there "
            "is no gradient for these",
            fix="--allow-unused-input leaves them without one; or set requires_grad_(False) on "
            "them, or use them",
            phase="backward",
        ) from error
