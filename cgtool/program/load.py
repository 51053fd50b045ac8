"""ENTRY to Workload, with everything that it is given on the device of the capture."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from cgtool.model.failure import CgtoolError, user_code
from cgtool.observe.annotations import install as install_annotations
from cgtool.program import grammar
from cgtool.program.boundary import load_error, own_fault
from cgtool.program.classify import Classifier
from cgtool.program.guarded_access import is_a
from cgtool.program.imports import find
from cgtool.program.inputs import seed_all
from cgtool.program.spec import parse
from cgtool.program.surface import tensors_in
from cgtool.program.workload import Part, Workload
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import is_fake, pytree


@contextlib.contextmanager
def _arguments_of(program: str) -> Iterator[None]:
    """``sys.argv`` as the user's file would find it: its own name and nothing else."""
    with Patches() as patches:
        patches.set(sys, "argv", [program])
        yield


def _classified(classifier: Classifier, value: Any) -> Workload:
    try:
        workload = classifier.classify(value)
        notes = _on_device(workload, classifier.device)
        return dataclasses.replace(workload, notes=(*workload.notes, *notes))
    except CgtoolError:
        raise
    except Exception as error:
        # A __len__ or a property of the user's, asked while looking at what it is.
        if own_fault(error):
            raise
        raise load_error(classifier.spec, error, otherwise=classifier.frames) from error


def load(
    spec: str, *, device: str, inputs: tuple[str, ...] = (), seed: int | None = None
) -> Workload:
    """Load an entry point on ``device`` (``cpu``, ``cuda``, ``cuda:1``).

    Raises CgtoolError: exit 2 for a wrong ENTRY or --input, 4 for what the user's code raises or
    returns, with the user's frames. KeyboardInterrupt passes.
    """
    entry = parse(spec)
    specs = grammar.parse_all(inputs)
    seed_all(seed)
    install_annotations()
    with _arguments_of(entry.target):
        module, owner, value = find(entry)
        return _classified(Classifier(spec, entry.name, module, owner, device, specs), value)


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
    return "a FakeTensor" if is_fake(tensor) else None


def _on_device(workload: Workload, device: str) -> tuple[str, ...]:
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
