"""The workload as the capture file has it, on a GPU and on the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from cgtool.model.capture import Caveat, Entry, Option, Tensor
from cgtool.model.options import CaptureOptions
from cgtool.program.phases import Phases, wants_backward
from cgtool.program.surface import address_of, named_tensors
from cgtool.program.workload import Workload


def entry(workload: Workload, options: CaptureOptions) -> Entry:
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


def tensor(name: str, kind: str, value: torch.Tensor) -> Tensor:
    """A tensor with a storage; its bytes are the storage from its first element on."""
    offset = int(value.storage_offset()) * value.itemsize
    return Tensor(
        name,
        kind,
        value.data_ptr(),
        int(value.untyped_storage().nbytes()) - offset,
        tuple(value.shape),
        str(value.dtype).removeprefix("torch."),
    )


def tensors(
    workload: Workload, wanted: Callable[[torch.Tensor], bool] = lambda _value: True
) -> tuple[list[Tensor], list[Caveat]]:
    """The workload's own memory, each range once under its first name, and caveats on tensors that
    have none."""
    tensors: list[Tensor] = []
    caveats: list[Caveat] = []
    seen: set[tuple[int, int]] = set()
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
            continue
        if start == 0:
            continue
        described = tensor(name, kind, value)
        if (described.address, described.bytes) not in seen:
            seen.add((described.address, described.bytes))
            tensors.append(described)
    return tensors, caveats


def labels(
    session: Phases, wanted: Callable[[torch.Tensor], bool] = lambda _value: True
) -> dict[int, str]:
    """By the address of a storage, the name of the output or gradient in it."""
    names: dict[int, str] = {}
    several = len(session.workload.parts) > 1

    def add(index: int, label: str, value: torch.Tensor | None) -> None:
        address = address_of(value) if value is not None and wanted(value) else None
        if address:
            where = f"{session.workload.parts[index].name}: " if several else ""
            names.setdefault(address, f"{where}{label}")

    for index, gradients in session.gradients.items():
        for (name, _), gradient in zip(session.surfaces[index].inputs, gradients, strict=True):
            add(index, f"gradient of {name}", gradient)
    for index, outputs in session.outputs.items():
        for name, value in outputs:
            add(index, name, value)
    for name, kind, value in named_tensors(session.workload):
        address = address_of(value) if kind == "gradient" and wanted(value) else None
        if address:
            names.setdefault(address, name)
    return names


def caveats(session: Phases, empty: Sequence[str]) -> list[Caveat]:
    """Notes and caveats on the workload; ``empty``: the names of the graphs without nodes."""
    caveats = [Caveat("note", note) for note in session.workload.notes]
    caveats += [
        Caveat("empty-graph", f"{name} launches nothing: its graph is empty") for name in empty
    ]
    if wants_backward(session):
        caveats += [
            Caveat(
                "no-backward",
                f"{part.name}: no output requires grad, so there is no backward graph",
            )
            for index, part in enumerate(session.workload.parts)
            if index not in session.surfaces
        ]
    return caveats
