"""The description of a workload for a capture file: entry, modules, tensors, caveats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

import msgspec
import torch

from cgtool.model.capture import Caveat, Entry, Module, Option, Tensor
from cgtool.model.options import CaptureOptions
from cgtool.observe.tensors import is_leaf, strided_parts
from cgtool.program.objects import is_a
from cgtool.program.phases import WorkloadRun, roots_of
from cgtool.program.reach import reach
from cgtool.program.workload import Workload, below, inputs_of
from cgtool.torch_compat.private import pytree
from cgtool.torch_compat.storages import StorageRef


def entry_of(workload: Workload, options: CaptureOptions) -> Entry:
    """The entry point and the capture options."""
    return Entry(
        spec=workload.spec,
        kind=workload.kind,
        file=workload.frame.file if workload.frame is not None else None,
        line=workload.frame.line if workload.frame is not None else None,
        callables=tuple(part.name for part in workload.parts),
        options=tuple(
            Option(name, str(value)) for name, value in msgspec.structs.asdict(options).items()
        ),
    )


def modules_of(workload: Workload) -> tuple[Module, ...]:
    """Every module, by the path that ``Origin.module`` has."""
    types: dict[str, str] = {}
    for roots in (roots_of(workload), *(part.modules for part in workload.parts)):
        for prefix, root in roots.items():
            for path, module in root.named_modules(prefix=prefix):
                types.setdefault(path, type(module).__name__)
    return tuple(Module(path, kind) for path, kind in types.items())


def address_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's storage; None without a storage of its own (sparse tensors,
    subclasses that wrap other tensors)."""
    try:
        return StorageRef(tensor).address
    except RuntimeError:
        # "Cannot access storage of SparseTensorImpl", "... of Storage that is invalid"
        return None


def describe_tensor(name: str, kind: str, value: torch.Tensor, storage: int | None) -> Tensor:
    """A tensor with a storage; its bytes are the storage from its first element on."""
    offset = int(value.storage_offset()) * value.itemsize
    return Tensor(
        name,
        kind,
        value.data_ptr(),
        StorageRef(value).bytes - offset,
        tuple(value.shape),
        str(value.dtype).removeprefix("torch."),
        storage,
    )


def tensors_of(
    workload: Workload,
    storage_of: Callable[[torch.Tensor], int | None],
    wanted: Callable[[torch.Tensor], bool] = lambda _tensor: True,
) -> tuple[list[Tensor], list[Caveat]]:
    """The workload's own memory, each range once under its first name, and caveats on tensors that
    have none. ``storage_of``: the number of a tensor's storage in ``Graph.calls``."""
    described: dict[tuple[int, int], Tensor] = {}
    caveats: list[Caveat] = []
    for name, kind, value in named_tensors(workload):
        if not wanted(value):
            continue
        start = address_of(value)
        if start is None:
            caveats.append(
                Caveat(
                    "no-storage",
                    f"{name} ({value.layout}, {type(value).__name__}) has no storage of its own: "
                    "pointers into the tensors that it consists of have no name",
                )
            )
        elif start != 0:
            tensor = describe_tensor(name, kind, value, storage_of(value))
            described.setdefault((tensor.address, tensor.bytes), tensor)
    return list(described.values()), caveats


def labels_of(
    run: WorkloadRun, wanted: Callable[[torch.Tensor], bool] = lambda _value: True
) -> dict[int, str]:
    """By the address of a storage, the name of the output or gradient in it."""
    results = sorted(named_results(run), key=itemgetter(0))  # gradients first
    named = [(name, value) for _, name, value in results]
    tensors = named_tensors(run.workload)
    named += [(name, value) for name, kind, value in tensors if kind == "gradient"]
    names: dict[int, str] = {}
    for name, value in named:
        address = address_of(value) if wanted(value) else None
        if address:
            names.setdefault(address, name)
    return names


def named_results(run: WorkloadRun) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(kind, name, tensor) of each ``output`` and each ``gradient``."""
    for index, outputs in run.outputs.items():
        where = run.workload.parts[index].prefix
        for name, tensor in outputs:
            yield "output", f"{where}{name}", tensor
    for index, gradients in run.gradients.items():
        where = run.workload.parts[index].prefix
        for (name, _), gradient in zip(run.backwards[index].inputs, gradients, strict=True):
            if gradient is not None:
                yield "gradient", f"{where}gradient of {name}", gradient


def caveats_of(run: WorkloadRun, empty: Sequence[str]) -> list[Caveat]:
    """Notes and caveats on the workload; ``empty``: the names of the graphs without nodes."""
    caveats = [Caveat("note", note) for note in run.workload.notes]
    caveats += notes_on_generators(run.workload)
    caveats += [
        Caveat("empty-graph", f"{name} has nothing to launch: its graph is empty") for name in empty
    ]
    if run.wants_backward:
        caveats += [
            Caveat(
                "no-backward",
                f"{part.name}: no output requires grad, so there is no backward graph",
            )
            for index, part in enumerate(run.workload.parts)
            if index not in run.backwards
        ]
    return caveats


def notes_on_generators(workload: Workload) -> list[Caveat]:
    """That random generators are registered, which a capture of the user's own has to do, too."""
    generators = generators_of(workload)
    return [
        Caveat(
            "note",
            "random generators that cgtool registers with the graphs, as a capture of your own has "
            f"to do by register_generator_state(): {', '.join(generators)}",
        )
    ] * bool(generators)


# --- what a workload owns


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
    for part in workload.parts:
        where = part.prefix
        names: dict[int, str] = {}
        for name, tensor in inputs_of(part):
            yield f"{where}{name}", "input", tensor
        for prefix, module in part.modules.items():
            for name, parameter in below(prefix, module.named_parameters()):
                names.setdefault(id(parameter), name)
                yield f"{where}parameter {name}", "parameter", parameter
                if (gradient := _gradient_of(parameter)) is not None:
                    yield f"{where}gradient of {name}", "gradient", gradient
            for name, buffer in below(prefix, module.named_buffers()):
                yield f"{where}buffer {name}", "buffer", buffer
        reached = reach(part.function)
        for name, tensor in reached.tensors.items():
            if name in part.leaves:
                yield f"{where}parameter {name}", "parameter", tensor
                if (gradient := _gradient_of(tensor)) is not None:
                    yield f"{where}gradient of {name}", "gradient", gradient
            else:
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
                if (gradient := _gradient_of(parameter)) is not None:
                    yield "gradient", f"gradient of {known}", gradient
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield "optimizer", f"{name} {key} of {known}", value


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """PyTorch warns whoever asks a tensor that is the result of an op: a parameter that was written
    with gradients enabled is one."""
    return tensor.grad if is_leaf(tensor) or tensor.retains_grad else None


def generators_of(workload: Workload) -> dict[str, torch.Generator]:
    """The user's random generators on a GPU that the callables reach, by name: in variables, in
    attributes of objects and modules, and among the arguments."""
    generators: dict[int, tuple[str, torch.Generator]] = {}
    for part in workload.parts:
        reached = list(reach(part.function).generators.items())
        for prefix, root in part.modules.items():
            for path, module in root.named_modules(prefix=prefix):
                reached += [
                    (f"{path}.{key}".lstrip("."), value) for key, value in vars(module).items()
                ]
        for key, argument in (*enumerate(part.args), *part.kwargs.items()):
            for path, leaf in pytree.tree_flatten_with_path(argument)[0]:
                reached.append((f"argument {key}{pytree.keystr(path)}", leaf))
        for name, value in reached:
            if is_a(value, torch.Generator) and value.device.type == "cuda":
                generators.setdefault(id(value), (name, value))
    return dict(generators.values())
