"""The state of the user's code: saved, restored, and read by name.

State is what outlives a call: parameters, buffers, gradients, optimizer state, tensors in closures,
Python values in attributes, containers and suspended generators, and random states. Iterators, the
lines at which generators are suspended, and what belongs to threads, files and C extensions are not
set back here, except for the tensors in them: ``not_restored`` says which of them have gone on.
(``cgtool.recapture`` sets Python's own iterators back, to find out whether they matter.)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cgtool.devices.device import Device
from cgtool.observe.raw_tensors import copies, has_nan, held, raw, write
from cgtool.program.description import named_tensors
from cgtool.program.progress import in_words, progress
from cgtool.program.workload import Workload, inputs_of, reachable_from
from cgtool.recapture.host_state import host_generators, read_generator, write_generator


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


def kept_values(workload: Workload, *, on_host: bool) -> dict[int, torch.Tensor]:
    """The values of all state and inputs, by identity of the tensor; on the host, where the device
    has no memory for another copy."""
    tensors = {id(tensor): tensor for _, tensor in reachable_from(workload).tensors.values()}
    if not on_host:
        return copies(tensors)
    with raw():
        return {key: held(each.detach()).to("cpu", copy=True) for key, each in tensors.items()}


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
        sources = [*reachable.random_sources, *host_generators()]
        self._random = [(source, read_generator(source)) for source in sources]
        self._device, self._device_random = device, device.get_rng_state()

    def heal(self, before: Mapping[int, torch.Tensor]) -> bool:
        """If iterations since ``kept_values`` left NaNs, begin with those, and with zeros where
        there was nothing. Returns whether they have."""
        if not any(map(has_nan, self.values.values())):
            return False
        for key, values in self.values.items():
            known = before.get(key)
            if known is not None and known.shape == values.shape:
                self.values[key] = known
            elif has_nan(values):
                self.values[key] = torch.zeros_like(values)
        return True

    def restore(self) -> None:
        """Restore objects, contents and random states."""
        self._restore_objects()
        self.restore_contents()

    def not_restored(self) -> list[str]:
        """Objects that have gone on since then and are not set back, in words."""
        self.restore()
        return [in_words(*each) for each, before in self._progress if progress(each[1]) != before]

    def restore_contents(self) -> None:
        """Restore contents and random states, and leave objects where they are now."""
        with raw():
            for tensor in self._tensors:
                write(tensor, self.values[id(tensor)])
        for array, values in self._arrays:
            array[...] = values
        for source, state in self._random:
            write_generator(source, state)
        self._device.set_rng_state(self._device_random)
