"""Names for memory: the tensors that lived before a capture, and what holds a block at its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from cgtool.devices.cuda import memory
from cgtool.devices.cuda.capturing import Session
from cgtool.devices.cuda.provenance import Joined
from cgtool.model.capture import Allocation, Caveat, Tensor
from cgtool.program import describe
from cgtool.program.surface import address_of


def _on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def tensors(session: Session) -> tuple[list[Tensor], list[Caveat]]:
    """The workload's own memory on the GPU, then the static gradients that come in; and what could
    not be told of it."""
    found, caveats = describe.tensors(session.workload, _on_gpu)
    for index, incoming in session.incoming.items():
        for (name, _), tensor in zip(session.surfaces[index].outputs, incoming, strict=True):
            if address_of(tensor) is not None:
                label = f"incoming gradient of {name}"
                found.append(describe.tensor(label, "gradient", tensor))
    return found, caveats


def labels(session: Session) -> dict[int, str]:
    """Address to the name of the output or gradient that lies there."""
    return describe.labels(session, _on_gpu)


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
