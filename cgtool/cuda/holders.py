"""Names for memory: the tensors that lived before a capture, and what holds a block at its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from cgtool.cuda import memory
from cgtool.cuda.capturing import Session
from cgtool.cuda.provenance import Joined
from cgtool.entry.surface import Named, address_of, named_tensors
from cgtool.model.capture import Allocation, Caveat, Tensor


def tensors(session: Session) -> tuple[list[Tensor], list[Caveat]]:
    """The workload's own memory, each piece once under the first of its names."""
    found: list[Tensor] = []
    caveats: list[Caveat] = []
    seen: set[tuple[int, int]] = set()
    for name, kind, tensor in named_tensors(session.workload):
        if tensor.device.type != "cuda":
            continue
        start = address_of(tensor)
        if start is None:
            caveats.append(
                Caveat(
                    "no-storage",
                    f"{name} ({tensor.layout}, {type(tensor).__name__}) has no storage of its "
                    "own: pointers into the tensors that it is made of have no name",
                )
            )
            continue
        if start == 0:
            continue
        one = _described(name, kind, tensor)
        if (one.address, one.bytes) not in seen:
            seen.add((one.address, one.bytes))
            found.append(one)
    for index, incoming in session.incoming.items():
        for (name, _), tensor in zip(session.surfaces[index].outputs, incoming, strict=True):
            if address_of(tensor) is not None:
                found.append(_described(f"incoming gradient of {name}", "gradient", tensor))
    return found, caveats


def _described(name: str, kind: str, tensor: torch.Tensor) -> Tensor:
    """A tensor with a storage, and all of that storage from its first element on."""
    offset = int(tensor.storage_offset()) * tensor.itemsize
    return Tensor(
        name,
        kind,
        tensor.data_ptr(),
        int(tensor.untyped_storage().nbytes()) - offset,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
    )


def labels(session: Session) -> dict[int, str]:
    """Address to the name of the output or gradient that lies there."""
    found: dict[int, str] = {}

    def add(label: str, tensor: torch.Tensor) -> None:
        address = address_of(tensor) if tensor.device.type == "cuda" else None
        if address:
            found.setdefault(address, label)

    several = len(session.workload.parts) > 1

    def where(index: int) -> str:
        return f"{session.workload.parts[index].name}: " if several else ""

    for index, gradients in session.gradients.items():
        wanted: Sequence[Named] = session.surfaces[index].inputs
        for (name, _), gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                add(f"{where(index)}gradient of {name}", gradient)
    for index, outputs in session.outputs.items():
        for name, tensor in outputs:
            add(f"{where(index)}{name}", tensor)
    for name, kind, tensor in named_tensors(session.workload):
        if kind == "gradient":
            add(name, tensor)
    return found


def allocations(
    session: Session, joined: Sequence[Joined], names: dict[int, str]
) -> tuple[Allocation, ...]:
    """The allocations of the trace, each with its node, its origin, and ``names`` by address for
    those that are alive at the end."""
    owner: dict[int, tuple[int, int | None]] = {}
    for index, (one, provenance) in enumerate(zip(session.captured, joined, strict=True)):
        nodes = memory.owners(session.trace, index, provenance.times_ns, one.window.end_ns)
        for position, node in nodes.items():
            owner[position] = (node, provenance.origins[node])
    result: list[Allocation] = []
    for index, allocation in enumerate(session.trace.allocations):
        place, origin = owner.get(index, (None, None))
        label = names.get(allocation.address) if allocation.freed_at is None else None
        result.append(msgspec.structs.replace(allocation, node=place, origin=origin, label=label))
    return tuple(result)
