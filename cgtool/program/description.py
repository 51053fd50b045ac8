"""What a capture file says of a workload: its entry, modules, tensors and caveats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import msgspec
import torch

from cgtool.model.capture import Caveat, Entry, Module, Option, Tensor
from cgtool.model.options import CaptureOptions
from cgtool.program.phases import WorkloadRun, roots_of
from cgtool.program.workload import Workload, generators_of, named_tensors
from cgtool.torch_compat.storages import StorageRef


@dataclass(frozen=True)
class Description:
    """A workload that was captured, as plain data."""

    entry: Entry
    modules: tuple[Module, ...]
    tensors: list[Tensor]
    """The workload's own memory, each range once under its first name."""
    caveats: list[Caveat]


def describe(
    run: WorkloadRun,
    storage_of: Callable[[torch.Tensor], int | None],
    empty: Sequence[str],
    wanted: Callable[[torch.Tensor], bool] = lambda _tensor: True,
) -> Description:
    """Describe a workload whose graphs named ``empty`` have no nodes.

    ``storage_of``: the number of a tensor's storage in ``Graph.calls``. ``wanted``: whether a
    tensor is described.
    """
    tensors, unnamed = _tensors_of(run.workload, storage_of, wanted)
    entry = entry_of(run.workload, run.options)
    return Description(entry, _modules_of(run.workload), tensors, unnamed + _caveats_of(run, empty))


def entry_of(workload: Workload, options: CaptureOptions) -> Entry:
    """The entry point and the capture options."""
    return Entry(
        spec=workload.spec,
        kind=workload.kind,
        file=workload.file,
        line=workload.line,
        callables=tuple(part.name for part in workload.parts),
        options=tuple(
            Option(name, str(value)) for name, value in msgspec.structs.asdict(options).items()
        ),
    )


def _modules_of(workload: Workload) -> tuple[Module, ...]:
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


def _tensors_of(
    workload: Workload,
    storage_of: Callable[[torch.Tensor], int | None],
    wanted: Callable[[torch.Tensor], bool],
) -> tuple[list[Tensor], list[Caveat]]:
    """The workload's own memory, and caveats on tensors that have none."""
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
    session: WorkloadRun, wanted: Callable[[torch.Tensor], bool] = lambda _value: True
) -> dict[int, str]:
    """By the address of a storage, the name of the output or gradient in it."""
    results = sorted(session.named_results(), key=itemgetter(0))  # gradients first
    named = [(name, value) for _, name, value in results]
    tensors = named_tensors(session.workload)
    named += [(name, value) for name, kind, value in tensors if kind == "gradient"]
    names: dict[int, str] = {}
    for name, value in named:
        address = address_of(value) if wanted(value) else None
        if address:
            names.setdefault(address, name)
    return names


def _caveats_of(run: WorkloadRun, empty: Sequence[str]) -> list[Caveat]:
    """Notes and caveats on the workload; ``empty``: the names of the graphs without nodes."""
    caveats = [Caveat("note", note) for note in run.workload.notes]
    if generators := generators_of(run.workload):
        caveats.append(
            Caveat(
                "note",
                "random generators that are registered with the graphs, as by "
                f"register_generator_state(): {', '.join(generators)}",
            )
        )
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
