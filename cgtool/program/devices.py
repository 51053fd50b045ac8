"""Everything that a workload is given must be on the device that is captured on."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from cgtool.model.failure import user_code
from cgtool.program.guarded_access import is_a
from cgtool.program.surface import tensors_in
from cgtool.program.workload import Part, Workload


def _same(have: torch.device, wanted: torch.device) -> bool:
    if have.type != wanted.type:
        return False
    return wanted.type != "cuda" or wanted.index is None or have.index == wanted.index


def _is_batch_sizes(value: Any, tensor: torch.Tensor) -> bool:
    """PyTorch keeps the ``batch_sizes`` of a PackedSequence on the host, whatever the device."""

    def is_packed(one: Any) -> bool:
        return is_a(one, PackedSequence)

    leaves = pytree.tree_leaves(value, is_leaf=is_packed)
    return any(is_packed(one) and one.batch_sizes is tensor for one in leaves)


def _where(part: Part) -> list[tuple[str, torch.Tensor]]:
    arguments = (*enumerate(part.args), *part.kwargs.items())
    found = [
        (f"argument {key}{path}", tensor)
        for key, value in arguments
        for path, tensor in tensors_in(value)
        if not _is_batch_sizes(value, tensor)
    ]
    for prefix, module in part.modules.items():
        start = f"{prefix}." if prefix else ""
        found += [(f"parameter {start}{name}", one) for name, one in module.named_parameters()]
    return found


def _without_data(tensor: torch.Tensor) -> str | None:
    if tensor.is_meta:
        return "on the meta device"
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return "a FakeTensor" if fake is not None and isinstance(tensor, fake.FakeTensor) else None


def check(workload: Workload, device: str) -> tuple[str, ...]:
    """Notes on host scalars that the graph will keep.

    Raises CgtoolError (exit 4) that names the first argument or parameter on another device.
    """
    wanted = torch.device(device)
    notes = []
    for part in workload.parts:
        for name, tensor in _where(part):
            nothing = _without_data(tensor)
            if nothing is not None:
                raise user_code(
                    f"{part.name}: {name} is {nothing}: a shape without data",
                    frames=part.frames,
                    why="what is captured runs, and there is nothing in it to run on",
                    fix="make it real: module.to_empty(device=device) and load the weights, or "
                    "build it outside of the meta device and FakeTensorMode",
                    phase="load",
                )
            if _same(tensor.device, wanted):
                continue
            is_host_scalar = tensor.device.type == "cpu" and tensor.dim() == 0
            if is_host_scalar and workload.kind != "callables" and name.startswith("argument"):
                notes.append(
                    f"{part.name}: {name} is a scalar tensor on the CPU; the graph keeps its value"
                )
                continue
            place = workload.entry_frame()
            raise user_code(
                f"{part.name}: {name} is on {tensor.device}, the capture is on {wanted}",
                frames=(place,) if place is not None else (),
                why="a CUDA graph holds only work of the device that it is captured on",
                fix="make it with device=device, or move it with .to(device)",
                phase="load",
            )
    return tuple(notes)
