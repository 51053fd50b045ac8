"""The state of the user's code: saved, restored, and read by name.

State is what outlives a call: parameters, buffers, gradients, optimizer state, tensors in closures,
Python values in attributes, containers and suspended generators, and random states. Iterators in C,
the lines at which generators are suspended, and what belongs to threads, files and C extensions
cannot be restored, except for the contents of the tensors in them; ``causes`` separates what they
change from noise.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cgtool.devices.device import Device
from cgtool.observe.raw_tensors import copies, raw, write
from cgtool.program.description import named_tensors
from cgtool.program.progress import in_words, progress
from cgtool.program.workload import Workload, inputs_of, reachable_from


def state_of(workload: Workload) -> dict[str, torch.Tensor]:
    """State tensors by name, each once; the inputs are not among them."""
    inputs = {id(tensor) for part in workload.parts for _, tensor in inputs_of(part)}
    named: dict[str, torch.Tensor] = {}
    added = set(inputs)
    for name, _, tensor in named_tensors(workload):
        # ``buffer net.mean`` is called ``net.mean``.
        kind, _, rest = name.partition(" ")
        _add(named, added, rest if kind in ("buffer", "tensor") else name, tensor)
    for path, tensor in reachable_from(workload).tensors.values():
        _add(named, added, path, tensor)
    return named


def _add(named: dict[str, torch.Tensor], added: set[int], name: str, tensor: torch.Tensor) -> None:
    if id(tensor) in added:
        return
    added.add(id(tensor))
    unique, number = name, 2
    while unique in named:
        unique, number = f"{name} ({number})", number + 1
    named[unique] = tensor


class Snapshot:
    """A state that can be restored."""

    def __init__(self, workload: Workload, device: Device) -> None:
        reachable = reachable_from(workload)
        self._restore_objects = reachable.layout()
        self._tensors = [tensor for _, tensor in reachable.tensors.values()]
        self.values = copies({id(tensor): tensor for tensor in self._tensors})
        """By identity of the tensor."""
        found = ((each, progress(each[1])) for each in reachable.objects.values())
        self._progress = [(each, before) for each, before in found if before is not None]
        self._arrays = [(array, array.copy()) for array in reachable.arrays]
        sources = [*reachable.random_sources, random]
        if (numpy := sys.modules.get("numpy")) is not None:
            sources.append(numpy.random)
        self._random: list[Callable[[], object]] = [
            *map(_rewinding, sources),
            partial(device.set_rng_state, device.get_rng_state()),
        ]

    def restore(self) -> None:
        """Restore objects, contents and random states."""
        self._restore_objects()
        self.restore_contents()

    def not_restored(self) -> list[str]:
        """What has gone on since then and is not set back, in words."""
        self.restore()
        return [in_words(*each) for each, before in self._progress if progress(each[1]) != before]

    def restore_contents(self) -> None:
        """Restore contents and random states, and leave objects where they are now."""
        with raw():
            for tensor in self._tensors:
                write(tensor, self.values[id(tensor)])
        for array, values in self._arrays:
            array[...] = values
        for restore in self._random:
            restore()


def _rewinding(source: Any) -> Callable[[], object]:
    """What sets a source of random numbers back to its present state."""
    if hasattr(source, "getstate"):  # Python's
        return partial(source.setstate, source.getstate())
    if hasattr(source, "get_state"):  # PyTorch's, and the older ones of NumPy
        return partial(source.set_state, source.get_state())
    bits = getattr(source, "bit_generator", source)
    return partial(setattr, bits, "state", bits.state)
