"""The ops of one run, as a graph would keep them: with numbers and addresses as they are."""

from __future__ import annotations

import itertools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import (
    UNINITIALIZED,
    Uninitialized,
    overwrites,
    reads_values,
    takes_shape,
    written_by,
)
from cgtool.observe.frames import caller_of_cgtool, callers, is_internal, package_part
from cgtool.observe.ops import OpCall, OpRecorder, unprofiled
from cgtool.observe.tensors import has_memory, is_number, on_host, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import pytree, storage_address
from cgtool.torch_compat.shared_kernels import copies_to_device
from cgtool.torch_compat.storages import StorageRef

_SMALL = 64
"""CPU tensors of up to this many elements are compared by value."""
SKIPPED = (
    "profiler::", "aten::detach", "aten::lift_fresh", "prim::", "aten::is_",
    "aten::_efficientzerotensor",
)  # fmt: skip
"""Prefixes of ops that become no node."""
COPIES = ("aten::copy_", "aten::_to_copy")
"""Prefixes of ops that copy, between the device and the host too."""
READS = frozenset(
    ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::allclose")
)
"""Ops that return a value of a tensor to the host."""


Place = tuple[int | str, int]
"""The place of a value among the arguments of an op: the position or name of the argument, and that
of the value in it. That a list has grown moves no other argument."""


@dataclass(frozen=True, slots=True)
class OutsideTensor:
    """A device tensor that an op reads and that the iteration did not create."""

    position: Place
    memory: range
    shape: tuple[int, ...]
    parameter: int | None
    """The identity of a parameter."""
    storage: int
    """Key of its storage; ``Iteration.storages`` keeps the key from being reused."""

    @property
    def address(self) -> int:
        return self.memory.start


@dataclass(slots=True)
class Op:
    """One op of an iteration, reduced to what a graph would keep."""

    call: OpCall
    numbers: tuple[tuple[Place, Any], ...]
    """Numbers and strings among the arguments, and the values of small CPU tensors, with their
    positions."""
    outside: tuple[OutsideTensor, ...]
    host: bool
    """All tensors of the op are on the host: those it gets, or else its results."""
    host_scalar: bool
    """A device op got a 0-dim CPU tensor from before the iteration as a number."""
    read_on_host: dict[Place, int] = field(default_factory=dict)
    """The storages of the CPU tensors among ``numbers``, by position."""
    lists: dict[int | str, int] = field(default_factory=dict)
    """How many tensors there are in the lists among the arguments, by position or name."""
    made: tuple[int, ...] = ()
    """The storages of its results, by key."""
    sizes: tuple[int, ...] = ()
    """The sizes of the device tensors among the arguments, one tensor after the other."""
    random: bool = False
    """It draws random numbers."""
    in_optimizer: bool = False
    """An optimizer of PyTorch runs it."""
    host_input: bool = False
    """That tensor is an argument of the callable, which a caller refills."""
    has_history: bool = False
    """It reads what an earlier iteration computed and autograd still follows."""
    inputs_written: frozenset[int] = frozenset()
    """The storages of arguments of the callable that it writes to."""
    carries_over: bool = False
    """An earlier op has read these arguments: the next call goes on from what this one leaves."""
    reads_nothing_of: int | None = None
    """Index of the call that allocated memory which this op reads before anything is written."""

    @property
    def site(self) -> tuple[Any, ...]:
        """The op, and the instructions that lead to it."""
        return self.call.name, *((id(code), lasti) for code, lasti in self.call.chain)


class _Memory:
    """The storages of an iteration: who made them, and which parts are written by now."""

    def __init__(self, storages: dict[int, StorageRef]) -> None:
        """All storages that ops get or return go into ``storages``."""
        self._storages = storages
        self._made: set[int] = set()
        self._made_on_host: set[int] = set()
        self._on_host: set[int] = set()
        self._overwritten: dict[int, list[range]] = {}
        """By storage: what ops have written without reading it."""

    def note(self, value: Any) -> set[int]:
        """The keys of the storages in a nested value."""
        tensors = storages_in(value)
        for key, tensor in tensors.items():
            if key not in self._storages:
                self._storages[key] = StorageRef(tensor)
        return set(tensors)

    def made(self, storages: set[int], *, on_host: bool) -> None:
        """An op has made these storages; ``on_host``: an op on CPU tensors."""
        self._made |= storages
        if on_host:
            self._made_on_host |= storages

    def has_made(self, storage: int) -> bool:
        return storage in self._made

    def overwrite(self, tensor: torch.Tensor) -> None:
        """An op has written a tensor without reading it."""
        self._overwritten.setdefault(storage_address(tensor), []).append(_range_of(tensor))

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """The simulated device marks no views that PyTorch makes in C++: their storage says it."""
        storage = storage_address(tensor)
        if on_host(tensor):
            self._on_host.add(storage)
        return storage in self._on_host

    def is_from_before(self, storage: int, memory: range) -> bool:
        """Whether what is at these addresses was there before the iteration."""
        return storage not in self._made and not any(
            memory.start in known and memory.stop <= known.stop
            for known in self._overwritten.get(storage, ())
        )

    def has_users_number(self, storage: int, memory: range) -> bool:
        """Whether a CPU tensor holds a number of the user's. A CPU result of a device op (the seed
        of an attention kernel) is none."""
        return storage in self._made_on_host or self.is_from_before(storage, memory)


class KeptOpRecorder(OpRecorder):
    """Records what a graph would keep of each op."""

    def __init__(self, roots: Any, annotations: Annotations, inputs: set[int]) -> None:
        """``inputs`` are keys of the storages of the callables' arguments."""
        super().__init__(roots, annotations)
        self.inputs = inputs
        self._inputs_read: set[int] = set()
        """Inputs of which an op has read a value by now."""
        self.ops: list[Op] = []
        self.filled: set[int] = set()
        """Storages on the host into which the device copies: a replay fills them too."""
        self.storages: dict[int, StorageRef] = {}
        """The storages of all arguments and results of ops, by key."""
        self._memory = _Memory(self.storages)
        self._empty = Uninitialized()

    def has_made(self, storage: int) -> bool:
        """Whether an op of this run has made a storage."""
        return self._memory.has_made(storage)

    def observe(
        self,
        func: Any,
        args: Args,
        kwargs: Kwargs,
        run: Callable[..., Any],
        caller: types.FrameType | None,
    ) -> Any:
        return unprofiled(super().observe, func, args, kwargs, run, caller)

    def note(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """An op has run that another recorder executes."""
        if call.name.startswith(SKIPPED):
            self._memory.made(
                self._memory.note(result) - self._memory.note((args, kwargs)),
                on_host=_all_on_host(result),
            )
            return
        op = self._op(call, func, args, kwargs)
        made = self._memory.note(result) - self._memory.note((args, kwargs))
        self._complete(op, func, args, kwargs, result)
        self.ops.append(op)
        self._memory.made(made, on_host=op.host)

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        op = None if call.name.startswith(SKIPPED) else self._op(call, func, args, kwargs)
        before = self._memory.note((args, kwargs))
        unread = self._empty.read_by(func, call.name, args, kwargs)
        result = self.run(func, args, kwargs)
        made = self._memory.note(result)
        # lift_fresh gets constants of the code, which are created in C++.
        if not call.name.startswith("aten::lift_fresh"):
            made -= before
        if op is not None:
            op.reads_nothing_of = unread
            self._complete(op, func, args, kwargs, result)
            self.ops.append(op)
        self._memory.made(made, on_host=_all_on_host(result) if op is None else op.host)
        if call.name.startswith(UNINITIALIZED):
            allocator = caller_of_cgtool(sys._getframe(1))
            # Python code of PyTorch fills what it allocates.
            if allocator is not None and not is_internal(allocator):
                self._empty.allocated(call.index, result)
        return result

    def _op(self, call: OpCall, func: Any, args: Any, kwargs: Any) -> Op:
        """The record of an op before it runs."""
        # What is overwritten is not read.
        unread = set(map(id, written_by(func, args, kwargs))) if overwrites(call.name) else ()
        read_on_host: dict[Place, int] = {}
        lists: Counter[int | str] = Counter()
        numbers: list[tuple[Place, Any]] = []
        sizes: list[int] = []
        outside: list[OutsideTensor] = []
        places: list[bool] = []
        host_scalar = host_input = False
        only_shapes = takes_shape(call.name)
        has_history = False
        for position, argument in _values_in(args, kwargs):
            if isinstance(argument, torch.Tensor):
                if position[1] >= 0:
                    lists[position[0]] += 1
                if not has_memory(argument):
                    continue
                host = self._memory.is_on_host(argument)
                places.append(host)
                sizes += () if host else argument.shape
                storage = storage_address(argument)
                memory = _range_of(argument)
                is_outside = self._memory.is_from_before(storage, memory)
                if host:
                    is_users = self._memory.has_users_number(storage, memory)
                    if is_users and argument.numel() <= _SMALL and id(argument) not in unread:
                        numbers.append((position, str(argument.tolist())))
                        read_on_host[position] = storage
                    is_read = id(argument) not in unread
                    is_scalar = argument.dim() == 0 and not is_number(argument)
                    host_scalar |= is_outside and is_read and is_scalar
                    host_input |= argument.dim() == 0 and storage in self.inputs
                elif is_outside and not only_shapes:
                    is_first = storage not in self.storages
                    has_history |= is_first and argument.requires_grad and not argument.is_leaf
                    parameter = id(argument) if isinstance(argument, torch.nn.Parameter) else None
                    shape = tuple(argument.shape)
                    if argument.numel():
                        outside.append(OutsideTensor(position, memory, shape, parameter, storage))
            elif type(argument) in (bool, int, float, complex, str):
                # A number that is none differs from itself.
                numbers.append((position, argument if argument == argument else "nan"))
        all_host = bool(places) and all(places)
        host_scalar = host_scalar and not all_host
        return Op(
            call,
            tuple(numbers),
            tuple(outside),
            all_host,
            host_scalar and not copies_to_device(func, args, kwargs, on_host),
            read_on_host,
            lists,
            tuple(sizes),
            random=torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
            host_input=host_input,
            has_history=has_history,
            in_optimizer=_in_optimizer(sys._getframe(2)),
        )

    def _complete(self, op: Op, func: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Add what is known of an op once it has run."""
        is_copy = op.call.name.startswith(COPIES)
        creates = not any(map(has_memory, tensors_in((args, kwargs))))
        if creates:
            op.host = any(True for _ in tensors_in(result)) and _all_on_host(result)
        elif is_copy:
            op.host = op.host and _all_on_host(result)
        filled = [each for each in storages_in(result).values() if on_host(each)] if is_copy else []
        if filled and not op.host and _does_not_wait(args, kwargs):
            self.filled.update(map(storage_address, filled))
        op.made = tuple(map(storage_address, filter(has_memory, tensors_in(result))))
        written = list(filter(has_memory, written_by(func, args, kwargs)))
        op.inputs_written = frozenset(self.inputs.intersection(map(storage_address, written)))
        op.carries_over = bool(op.inputs_written) and op.inputs_written <= self._inputs_read
        if reads_values(func, op.call.name):
            given = filter(has_memory, tensors_in((args, kwargs)))
            self._inputs_read |= self.inputs.intersection(map(storage_address, given))
        if overwrites(op.call.name):
            for tensor in written:
                self._memory.overwrite(tensor)
            op.outside = tuple(
                tensor
                for tensor in op.outside
                if self._memory.is_from_before(tensor.storage, tensor.memory)
            )


def _values_in(args: Args, kwargs: Kwargs) -> Iterator[tuple[Place, Any]]:
    """The values among the arguments of an op, each with its place; -1 is that in an argument that
    is a value itself."""
    arguments: Iterator[tuple[int | str, Any]] = itertools.chain(enumerate(args), kwargs.items())
    for key, argument in arguments:
        if isinstance(argument, list | tuple | dict):
            for number, value in enumerate(pytree.tree_leaves(argument)):
                yield (key, number), value
        else:
            yield (key, -1), argument


def _all_on_host(value: Any) -> bool:
    """Whether all tensors in a nested value are on the host; True if there are none."""
    return all(map(on_host, tensors_in(value)))


def storages_in(value: Any) -> dict[int, torch.Tensor]:
    """A tensor on each storage in a nested value, by the key of the storage."""
    return {storage_address(tensor): tensor for tensor in tensors_in(value) if has_memory(tensor)}


def _does_not_wait(args: Args, kwargs: Kwargs) -> bool:
    """Whether a copy is ``non_blocking``."""
    return bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))


def _range_of(tensor: torch.Tensor) -> range:
    """Its addresses; empty ones at its first address if it has gaps."""
    size = tensor.numel() * tensor.element_size() if tensor.is_contiguous() else 0
    return range(tensor.data_ptr(), tensor.data_ptr() + size)


def _in_optimizer(frame: types.FrameType | None) -> bool:
    """Whether an optimizer of PyTorch is what runs innermost of ``torch.optim``, not a scheduler,
    which also wraps the step of the optimizer, nor an average of weights."""
    codes = itertools.takewhile(is_internal, (each.f_code for each in callers(frame)))
    files = (package_part(code.co_filename) for code in codes)
    own = next((file for file in files if file.startswith("/torch/optim/")), None)
    return own is not None and not own.endswith(("/lr_scheduler.py", "/swa_utils.py"))
