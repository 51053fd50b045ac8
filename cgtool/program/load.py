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
    """``sys.argv`` is the name of the user's file alone."""
    with Patches() as patches:
        patches.set(sys, "argv", [program])
        yield


def load(
    spec: str, *, device: str, inputs: tuple[str, ...] = (), seed: int | None = None
) -> Workload:
    """Load an entry point on ``device`` (``cpu``, ``cuda``, ``cuda:1``).

    Raises CgtoolError: exit 2 for a wrong ENTRY or --input, 4 for what the user's code raises or
    returns, with the user's frames. KeyboardInterrupt passes.
    """
    entry = parse(spec)
    input_specs = grammar.parse_all(inputs)
    seed_all(seed)
    install_annotations()
    with _arguments_of(entry.target):
        module, owner, value = find(entry)
        classifier = Classifier(spec, entry.name, module, owner, device, input_specs)
        try:
            workload = classifier.classify(value)
            notes = _check_devices(workload, device)
        except CgtoolError:
            raise
        except Exception as error:
            # A __len__ or a property of the user's, read to classify the object.
            if own_fault(error):
                raise
            raise load_error(spec, error, otherwise=classifier.frames) from error
    return dataclasses.replace(workload, notes=(*workload.notes, *notes))


def _check_devices(workload: Workload, device: str) -> tuple[str, ...]:
    """Notes on scalar CPU tensors, whose values the graph keeps.

    Raises CgtoolError (exit 4) for the first argument or parameter on another device.
    """
    wanted = torch.device(device)
    notes = []
    for part in workload.parts:
        for name, tensor in _tensors_of(part):
            if tensor.is_meta or is_fake(tensor):
                kind = "on the meta device" if tensor.is_meta else "a FakeTensor"
                raise user_code(
                    f"{part.name}: {name} is {kind}: it has a shape and no data",
                    frames=part.frames,
                    why="a capture runs the code, on real data",
                    fix="allocate it with module.to_empty(device=device) and load the weights, or "
                    "create it outside of the meta device and FakeTensorMode",
                    phase="load",
                )
            if _is_on(tensor.device, wanted):
                continue
            is_host_scalar = tensor.device.type == "cpu" and tensor.dim() == 0
            if is_host_scalar and workload.kind != "callables" and name.startswith("argument"):
                notes.append(
                    f"{part.name}: {name} is a scalar tensor on the CPU; the graph keeps its value"
                )
                continue
            frame = workload.entry_frame()
            raise user_code(
                f"{part.name}: {name} is on {tensor.device}, the capture is on {wanted}",
                frames=(frame,) if frame is not None else (),
                why="a CUDA graph holds only work of the device that it is captured on",
                fix="create it with device=device, or move it with .to(device)",
                phase="load",
            )
    return tuple(notes)


def _is_on(device: torch.device, wanted: torch.device) -> bool:
    if device.type != wanted.type:
        return False
    return wanted.type != "cuda" or wanted.index is None or device.index == wanted.index


def _tensors_of(part: Part) -> list[tuple[str, torch.Tensor]]:
    """The arguments and parameters, by the names that messages use."""
    tensors = [
        (f"argument {key}{path}", tensor)
        for key, value in (*enumerate(part.args), *part.kwargs.items())
        for path, tensor in tensors_in(value)
        if not _is_batch_sizes(value, tensor)
    ]
    for prefix, module in part.modules.items():
        start = f"{prefix}." if prefix else ""
        tensors += [(f"parameter {start}{name}", each) for name, each in module.named_parameters()]
    return tensors


def _is_batch_sizes(value: Any, tensor: torch.Tensor) -> bool:
    """The ``batch_sizes`` of a PackedSequence are on the CPU, whatever its device."""

    def is_packed(leaf: Any) -> bool:
        return is_a(leaf, PackedSequence)

    leaves = pytree.tree_leaves(value, is_leaf=is_packed)
    return any(is_packed(leaf) and leaf.batch_sizes is tensor for leaf in leaves)
