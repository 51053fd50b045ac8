"""The state of the user's code: saved, restored, and read by name.

State is what outlives a call: parameters, buffers, gradients, optimizer state, tensors in closures,
Python values in attributes and containers, and random states. State in iterators, generators and C
extensions cannot be restored; ``causes`` separates what it changes from noise.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from cgtool.devices.device import Device
from cgtool.jobs.verify.reachable import Reachable
from cgtool.program.workload import Workload, inputs_of, named_tensors
from cgtool.torch_compat.op_key import unintercepted, unobserved
from cgtool.torch_compat.private import disable_current_modes, no_torch_function

Key = TypeVar("Key")


@contextlib.contextmanager
def raw() -> Iterator[None]:
    """Read and write tensors directly: without autograd and recorders."""
    with disable_current_modes(), unobserved(), torch.inference_mode(), no_torch_function():
        yield


@contextlib.contextmanager
def arithmetic() -> Iterator[None]:
    """Compute with tensors directly: ``raw``, also without the simulated device, so that no op may
    name a device."""
    with raw(), unintercepted():
        yield


def copies(tensors: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
    """Copies that the next run does not overwrite."""
    with raw():
        return {key: tensor.detach().clone() for key, tensor in tensors.items()}


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of any layout as a contiguous strided tensor."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg().contiguous()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True when no bit of two dense tensors differs."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.numel() == 0 or left.is_meta:
        return True
    # The stride of a single element can be any number, and view wants 1.
    left, right = (each.reshape(-1).as_strided((each.numel(),), (1,)) for each in (left, right))
    return bool(torch.equal(left.view(torch.uint8), right.view(torch.uint8)))


def is_finite(tensor: torch.Tensor) -> bool:
    """True without a NaN or an infinity."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    with arithmetic():
        return bool(dense(tensor).isfinite().all())


def unchanged(before: torch.Tensor, now: torch.Tensor) -> bool:
    """True when no bit differs; the two may be on different devices."""
    with raw():
        if before.shape != now.shape:
            return False
        before = before.to(now.device)
    with arithmetic():
        return same_bits(dense(before), dense(now.detach()))


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the elements that do not share memory by a stride of 0."""
    view = tensor.detach()
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            view = view.narrow(dimension, 0, 1)
    return view


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into the memory of a tensor. Elements that share memory are written once."""
    with raw():
        if tensor.layout != torch.strided:
            tensor.copy_(values)
            return
        target = distinct(tensor)
        for dimension, size in enumerate(target.shape):
            values = values.narrow(dimension, 0, size)
        target.copy_(values)


def read(workload: Workload) -> dict[str, torch.Tensor]:
    """State tensors by name, each once; the inputs are not among them."""
    inputs = {id(tensor) for part in workload.parts for _, tensor in inputs_of(part)}
    named: dict[str, torch.Tensor] = {}
    added = set(inputs)
    for name, _, tensor in named_tensors(workload):
        # ``buffer net.mean`` is called ``net.mean``.
        kind, _, rest = name.partition(" ")
        _add(named, added, rest if kind in ("buffer", "tensor") else name, tensor)
    for path, tensor in Reachable(workload).tensors.values():
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
        self.reachable = Reachable(workload)
        self._restore_objects = self.reachable.layout()
        self._tensors = [tensor for _, tensor in self.reachable.tensors.values()]
        self._values = copies({id(tensor): tensor for tensor in self._tensors})
        self._arrays = [(array, array.copy()) for array in self.reachable.arrays]
        sources = [*self.reachable.random_sources, random]
        if (numpy := sys.modules.get("numpy")) is not None:
            sources.append(numpy.random)
        self._random: list[Callable[[], object]] = [
            *map(_rewinding, sources),
            partial(device.set_rng_state, device.get_rng_state()),
        ]

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The saved value of a tensor; None for a tensor that is not part of the state."""
        return self._values.get(id(tensor))

    def restore(self) -> None:
        """Restore objects, contents and random states."""
        self._restore_objects()
        self.restore_contents()

    def restore_contents(self) -> None:
        """Restore contents and random states, and leave objects where they are now."""
        with raw():
            for tensor in self._tensors:
                write(tensor, self._values[id(tensor)])
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
