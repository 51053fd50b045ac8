"""Eager in float64, to see how far rounding took eager and a replay.

The user's code runs unchanged, with the types that it asks for. Next to each op the same op runs
once more, in float64, on shadows: every tensor of floating-point numbers has one, by its storage,
so views and writes in place need no rules. Where memory changes without an op (a kernel that is
launched by itself), the shadow begins again from what the run has. Indices, masks and Python's
decisions are those of the run itself. An op without a float64 kernel, one that draws random
numbers, and one of another library run in their own types on the rounded shadows: as accurate as
eager there, and named.

This is the float64 reference of ``torch._dynamo.utils.same``, for code that no deep copy in double
precision can be made of. It costs an eager iteration whose ops run twice, the second time at
float64's speed, and twice (four times for 16-bit types) the memory of what is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from cgtool.devices.device import Device
from cgtool.observe.effects import UNINITIALIZED, effect_of, written_by
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.raw_tensors import raw, write
from cgtool.observe.tensors import has_shape, key_of
from cgtool.program.boundary import first_line
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import (
    below_autograd,
    dispatches_to_python,
    pytree,
    schema_of,
    storage_address,
)
from cgtool.torch_compat.storages import StorageRef, device_of

Key = TypeVar("Key")

_NARROW = frozenset(
    (
        torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    )
)  # fmt: skip
"""Real types whose values a shadow can hold."""
_OURS = ("aten::", "prims::")
"""Kernels of PyTorch, which check the types of their arguments."""
_COLLECTIVE = ("c10d::", "_c10d_functional::")
"""They run once: all ranks must call them as often."""
_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""Errors of an op that has no kernel for its arguments."""
NO_MEMORY = "not enough memory"
_CHUNK = 1 << 24
_PURGE = 256
"""Ops between two looks for shadows of freed memory."""


def _component(tensor: torch.Tensor) -> torch.dtype:
    return tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype


def _has_numbers(value: Any) -> bool:
    """Whether a tensor can have a shadow."""
    return (
        isinstance(value, torch.Tensor)
        and has_shape(value)
        and _component(value) in _NARROW
        and not value.is_meta
        and not dispatches_to_python(value)
    )


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The values as float64 or complex128; of other types, a copy."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if _component(tensor) in _NARROW else tensor.clone()


@dataclass
class _Block:
    """The float64 values of a storage."""

    owner: StorageRef
    component: torch.dtype
    values: torch.Tensor
    checksum: torch.Tensor
    """Checksum of the storage's own bytes when an op last wrote to it."""


def _all_of(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Everything in the storage of a tensor."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=dtype, device=device_of(storage)).set_(storage)


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    """A checksum of all bytes of a tensor's storage and their places."""
    sums = []
    for part in _all_of(tensor, torch.uint8).split(_CHUNK):
        places = torch.ones_like(part).cumsum(0, dtype=torch.int64)
        sums += [part.sum(dtype=torch.int64), (part * places).sum(dtype=torch.int64)]
    return torch.stack(sums) if sums else torch.empty(0)


def _like(tensor: torch.Tensor, memory: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``tensor`` in other memory, which has an element for each of its storage's."""
    storage = memory.untyped_storage()
    view = torch.empty(0, dtype=dtype, device=device_of(storage)).set_(
        storage, tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    view = view.conj() if tensor.is_conj() else view
    return -view if tensor.is_neg() else view


class Shadows:
    """The float64 values of tensors, one block for each storage."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The shadow of a tensor: writing to it changes the shadows of all its views. A new one
        has the tensor's own values."""
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        return _like(tensor, self._block(tensor).values, wide)

    def rounded(self, tensor: torch.Tensor, copies: dict[int, torch.Tensor]) -> torch.Tensor:
        """The shadow in the tensor's own type, with its strides and in as much memory, which views
        of one storage share: a kernel may know more of its arguments than their shape. ``copies``:
        of the storages so far, by address."""
        key = storage_address(tensor)
        if key not in copies:
            copies[key] = self._block(tensor).values.to(_component(tensor), copy=True)
        return _like(tensor, copies[key], tensor.dtype)

    def _block(self, tensor: torch.Tensor) -> _Block:
        storage, component = StorageRef(tensor), _component(tensor)
        block = self._blocks.get(storage.key)
        if (
            block is None
            or block.owner.expired()
            or block.component != component
            or block.values.numel() < storage.bytes // component.itemsize
        ):
            values = _all_of(tensor, component).to(torch.float64, copy=True)
            block = _Block(storage, component, values, _checksum(tensor))
            self._blocks[storage.key] = block
        return block

    def values(self, tensors: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Copies of the float64 values; of a tensor that can have no shadow, its own."""
        values = {}
        with raw():
            for key, tensor in tensors.items():
                if _has_numbers(tensor):
                    self.check(tensor)
                    values[key] = self.of(tensor).clone()
                else:
                    values[key] = widened(tensor.detach())
        return values

    def check(self, tensor: torch.Tensor) -> None:
        """Forget the shadow of memory that something else than an op of the run has written: a
        kernel that is launched by itself, a collective, the next inputs."""
        key = storage_address(tensor)
        block = self._blocks.get(key)
        if block is not None and not torch.equal(block.checksum, _checksum(tensor)):
            del self._blocks[key]

    def written(self, tensor: torch.Tensor) -> None:
        """An op has written to a tensor, and its shadow has the new values."""
        if (block := self._blocks.get(storage_address(tensor))) is not None:
            block.checksum = _checksum(tensor)

    def purge(self) -> None:
        """Free the shadows of freed memory."""
        for key in [key for key, block in self._blocks.items() if block.owner.expired()]:
            del self._blocks[key]

    def clear(self) -> None:
        self._blocks.clear()


class Float64Recorder(OpRecorder):
    """Runs each op a second time on shadows."""

    def __init__(self, roots: Any, annotations: Any, device: Device) -> None:
        super().__init__(roots, annotations)
        self.shadows = Shadows()
        self.own_type: dict[str, str] = {}
        """Ops that did not run in float64, and why not."""
        self.failure: str | None = None
        """Why there are no float64 values."""
        self.device = device
        self._opaque: dict[int, tuple[StorageRef, torch.Tensor]] = {}
        """Bytes that a float64 kernel keeps for its backward, by the storage of those that the op
        itself returned."""

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        if (
            self.failure is not None
            or schema_of(func) is None
            or effect_of(func).view
            or call.name.startswith((*_COLLECTIVE, *UNINITIALIZED))
            or not any(map(_has_numbers, leaves))
        ):
            return self.run(func, args, kwargs)
        op = _Op(self, call.name, func, args, kwargs)
        self._guard(op.prepare)
        output = self.run(func, args, kwargs)
        self._guard(partial(op.follow, output))
        if call.index % _PURGE == 0:
            self.shadows.purge()
            self._opaque = {
                key: kept for key, kept in self._opaque.items() if not kept[0].expired()
            }
        return output

    def _guard(self, action: Callable[[], None]) -> None:
        """Work on shadows, which must not fail in the user's code."""
        if self.failure is not None:
            return
        grad_mode = torch.is_grad_enabled()
        try:
            # Kernels look at the grad mode.
            with raw(), below_autograd(), torch.set_grad_enabled(grad_mode):
                action()
        except torch.OutOfMemoryError:
            self.failure = NO_MEMORY
        except Exception as error:
            # The kernel of a custom op is the user's code, and raises anything.
            self.failure = first_line(error)
        if self.failure is not None:
            self.shadows.clear()

    def opaque(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The bytes that take the place of ``tensor`` in float64."""
        kept = self._opaque.get(storage_address(tensor))
        return None if kept is None or kept[0].expired() else kept[1]

    def keep_opaque(self, tensor: torch.Tensor, wide: torch.Tensor) -> None:
        storage = StorageRef(tensor)
        self._opaque[storage.key] = storage, wide


class _Op:
    """One op and its second run."""

    def __init__(
        self, recorder: Float64Recorder, name: str, func: Any, args: Any, kwargs: Any
    ) -> None:
        self.recorder, self.name, self.func = recorder, name, func
        self.arguments = args, kwargs
        self.draws = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self.written = {id(tensor): tensor for tensor in written_by(func, args, kwargs)}
        self.copies: dict[int, torch.Tensor] = {}
        """Tensors of the second run in place of those that have no shadow and are written."""
        self.states: list[Callable[[], object]] = []

    def prepare(self) -> None:
        """Before the op: shadows of what it reads, and the random state."""
        leaves = pytree.tree_leaves(self.arguments)
        for leaf in leaves:
            if _has_numbers(leaf):
                self.recorder.shadows.check(leaf)
                self.recorder.shadows.of(leaf)
            elif id(leaf) in self.written:
                self.copies[id(leaf)] = leaf.clone()
        self.states = self._random_states()

    def follow(self, output: Any) -> None:
        """After the op: the second run, and the shadows of its results."""
        results = pytree.tree_leaves(output)
        changed = [tensor for tensor in self.written.values() if _has_numbers(tensor)]
        if not changed and not any(map(_has_numbers, results)):
            return
        after = self._random_states()
        own_type = self.recorder.own_type
        if self.draws:
            own_type.setdefault(self.name, "it draws random numbers")
        elif not self.name.startswith(_OURS):
            own_type.setdefault(self.name, "it is not PyTorch's")
        wide = None if self.name in own_type else self._in_float64()
        if wide is None:
            for restore in self.states:
                restore()
            wide = self._in_own_type(changed)
            for restore in after:
                restore()
        self._assign(results, wide)
        for tensor in (*changed, *filter(_has_numbers, results)):
            self.recorder.shadows.written(tensor)

    def _random_states(self) -> list[Callable[[], object]]:
        """Functions that restore the random states that the op draws from, as they are now."""
        if not self.draws:
            return []
        device = self.recorder.device
        return [
            partial(device.set_rng_state, device.get_rng_state()),
            *(
                partial(leaf.set_state, leaf.get_state())
                for leaf in pytree.tree_leaves(self.arguments)
                if isinstance(leaf, torch.Generator)
            ),
        ]

    def _run(self, convert: Callable[[Any], Any], arguments: Any) -> list[Any]:
        args, kwargs = pytree.tree_map(convert, arguments)
        return list(pytree.tree_leaves(self.func(*args, **kwargs)))

    def _in_float64(self) -> list[Any] | None:
        """The results of the op on shadows; None if it has no kernel for them."""

        def convert(leaf: Any) -> Any:
            if _has_numbers(leaf):
                return self.recorder.shadows.of(leaf)
            if isinstance(leaf, torch.dtype) and leaf in _NARROW:
                return torch.float64
            if isinstance(leaf, torch.dtype) and leaf.is_complex:
                return torch.complex128
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.uint8 and has_shape(leaf):
                kept = self.recorder.opaque(leaf)
                return self.copies.get(id(leaf), leaf if kept is None else kept)
            return self.copies.get(id(leaf), leaf)

        args, kwargs = self.arguments
        for position, argument in enumerate(schema_of(self.func).arguments):
            # A softmax of float16 in float32 is one of float64 in float64.
            if argument.name == "half_to_float" and position < len(args):
                args = (*args[:position], False, *args[position + 1 :])
        try:
            return self._run(convert, (args, kwargs))
        except torch.OutOfMemoryError:
            raise
        except _ERRORS as error:
            self.recorder.own_type[self.name] = first_line(error)
        return None

    def _in_own_type(self, changed: list[torch.Tensor]) -> list[Any]:
        shadows, rounded = self.recorder.shadows, dict(self.copies)
        storages: dict[int, torch.Tensor] = {}

        def convert(leaf: Any) -> Any:
            if _has_numbers(leaf) and id(leaf) not in rounded:
                rounded[id(leaf)] = shadows.rounded(leaf, storages)
            return rounded.get(id(leaf), leaf)

        results = self._run(convert, self.arguments)
        for tensor in changed:
            write(shadows.of(tensor), rounded[id(tensor)])
        return results

    def _assign(self, results: list[Any], wide: list[Any]) -> None:
        """Make the results of the second run the shadows of those of the first."""
        in_place = set(map(key_of, self.written.values()))
        for result, value in zip(results, wide, strict=True):
            if not isinstance(result, torch.Tensor) or not has_shape(result):
                continue
            if key_of(result) in in_place:
                continue
            if _has_numbers(result):
                write(self.recorder.shadows.of(result), value)
            elif result.dtype == torch.uint8 and not self.draws:
                self.recorder.keep_opaque(result, value)
