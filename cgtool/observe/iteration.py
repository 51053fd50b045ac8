"""One eager iteration: its ops as a graph would keep them, and the random numbers and times that
the host used."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import UNINITIALISED, Uninitialised, written_by
from cgtool.observe.frames import Site, chain_of, is_internal, package_part
from cgtool.observe.host_reads import HostReads, Snapshot
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.observe.tensors import has_shape, on_host, tensors_in
from cgtool.torch_compat.patches import without_collector
from cgtool.torch_compat.private import pytree, storage_key

_SMALL = 64
"""CPU tensors of up to this many elements are compared by value."""
SKIPPED = ("profiler::", "aten::detach", "aten::lift_fresh", "prim::", "aten::is_")
"""Prefixes of ops that become no node."""


@dataclass(frozen=True, slots=True)
class OutsideTensor:
    """A device tensor that an op reads and that the iteration did not create."""

    position: int
    address: int
    shape: tuple[int, ...]
    parameter: bool
    storage: int
    """Key of its storage; ``Iteration.storages`` keeps the key from being reused."""


@dataclass(slots=True)
class Op:
    """One op of an iteration, reduced to what a graph would keep."""

    call: OpCall
    numbers: tuple[Any, ...]
    """Numbers and strings among the arguments, and the values of small CPU tensors, with their
    positions."""
    outside: tuple[OutsideTensor, ...]
    host: bool
    """All tensors of the op are on the host."""
    host_scalar: bool
    """A device op got a 0-dim CPU tensor from before the iteration."""
    in_optimizer: bool = False
    """An optimizer of PyTorch runs it."""
    writes_input: bool = False
    """It writes to an argument of the callable."""
    reads_nothing_of: int | None = None
    """Index of the call that allocated memory which this op reads before anything is written."""


@dataclass
class Iteration:
    """What one eager iteration did."""

    ops: list[Op] = field(default_factory=list)
    drawn: list[tuple[str, tuple[Site, ...]]] = field(default_factory=list)
    """Random numbers and times that the code took on the host: (``random`` or ``clock``, chain)."""
    state: Snapshot = field(default_factory=dict)
    """The values on the host that the code reads, after the iteration."""
    record: Record = field(default_factory=Record)
    storages: dict[int, StorageWeakRef] = field(default_factory=dict)
    """All storages of arguments and results of ops, by key."""

    def outlived(self, storage: int) -> bool:
        """Whether a storage is still alive after the iteration."""
        return not self.storages[storage].expired()


class _Recorder(OpRecorder):
    """Records what a graph would keep of each op."""

    def __init__(
        self, roots: Any, annotations: Annotations, iteration: Iteration, inputs: set[int]
    ) -> None:
        super().__init__(roots, annotations)
        self.iteration = iteration
        self.inputs = inputs
        self._storages: set[int] = set()
        self._by_host: set[int] = set()
        """Those of ``_storages`` that an op on CPU tensors created."""
        self._empty = Uninitialised()

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        op = self._op(call, args, kwargs)
        before = self._note_storages((args, kwargs))
        unread = self._empty.read_by(func, call.name, args, kwargs)
        result = self.run(func, args, kwargs)
        new = self._note_storages(result) - before
        if call.name.startswith("aten::lift_fresh"):
            # A constant of the code: created in C++, and passed to this op first.
            new = self._note_storages(result)
        self._storages |= new
        if (op is None and all(map(on_host, tensors_in(result)))) or (op is not None and op.host):
            self._by_host |= new
        if call.name.startswith(UNINITIALISED) and _called_by_user(sys._getframe(1)):
            self._empty.allocated(call.index, result)
        if op is not None:
            op.reads_nothing_of = unread
            op.writes_input = any(
                storage_key(tensor.untyped_storage()) in self.inputs
                for tensor in written_by(func, args, kwargs)
                if _is_plain(tensor)
            )
            self.iteration.ops.append(op)
        return result

    def _note_storages(self, value: Any) -> set[int]:
        storages = storages_in(value)
        for key, storage in storages.items():
            if key not in self.iteration.storages:
                self.iteration.storages[key] = StorageWeakRef(storage)
        return set(storages)

    def _op(self, call: OpCall, args: Any, kwargs: Any) -> Op | None:
        if call.name.startswith(SKIPPED):
            return None
        numbers: list[Any] = []
        outside: list[OutsideTensor] = []
        places: list[bool] = []
        host_scalar = False
        for position, argument in enumerate(pytree.tree_leaves((args, kwargs))):
            if isinstance(argument, torch.Tensor):
                if not _is_plain(argument):
                    continue
                host = on_host(argument)
                places.append(host)
                storage = storage_key(argument.untyped_storage())
                is_outside = storage not in self._storages
                if host:
                    # A CPU result of a device op (the seed of an attention kernel) is not a number
                    # of the user's.
                    if argument.numel() <= _SMALL and (is_outside or storage in self._by_host):
                        numbers.append((position, str(argument.tolist())))
                    host_scalar |= is_outside and argument.dim() == 0
                elif is_outside:
                    is_parameter = isinstance(argument, torch.nn.Parameter)
                    shape = tuple(argument.shape)
                    outside.append(
                        OutsideTensor(position, argument.data_ptr(), shape, is_parameter, storage)
                    )
            elif type(argument) in (bool, int, float, complex, str):
                # A number that is none differs from itself.
                numbers.append((position, argument if argument == argument else "nan"))
        all_host = bool(places) and all(places)
        return Op(
            call,
            tuple(numbers),
            tuple(outside),
            all_host,
            host_scalar and not all_host,
            _inside(sys._getframe(2), "/torch/optim/"),
        )


def storages_in(value: Any) -> dict[int, torch.UntypedStorage]:
    """The storages of all tensors in a nested value, by key."""
    storages = (tensor.untyped_storage() for tensor in tensors_in(value) if _is_plain(tensor))
    return {storage_key(storage): storage for storage in storages}


def _inside(frame: types.FrameType | None, part: str) -> bool:
    """Whether a file of this part of PyTorch is between the op and the user's line."""
    while frame is not None and is_internal(frame.f_code):
        if package_part(frame.f_code.co_filename).startswith(part):
            return True
        frame = frame.f_back
    return False


def _called_by_user(frame: types.FrameType | None) -> bool:
    """Whether the user's code allocates, and not Python code of PyTorch."""
    while frame is not None and package_part(frame.f_code.co_filename).startswith("/cgtool/"):
        frame = frame.f_back
    return frame is not None and not is_internal(frame.f_code)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and has_shape(tensor)


class _CallProfile:
    """Passes every frame of the user's code to ``reads``, and notes random numbers and times."""

    def __init__(self, reads: HostReads, iteration: Iteration) -> None:
        self.reads = reads
        self.iteration = iteration

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if not is_internal(frame.f_code):
                self.reads.add_frame(frame)
        elif event == "c_call":
            kind = _kind_of_source(argument)
            if kind is not None and _user_calls(frame):
                self.iteration.drawn.append((kind, chain_of(frame)))

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self)

    def __exit__(self, *_exc: Any) -> None:
        sys.setprofile(self._before)


def _kind_of_source(function: Any) -> str | None:
    """``random`` or ``clock`` for a function in C that returns one, else None."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random"):
        return "random"
    if isinstance(owner, types.ModuleType) and owner.__name__ == "time":
        return "clock"
    return None


def _user_calls(frame: types.FrameType | None) -> bool:
    """Whether the user's code calls, directly or through Python code of ``random``."""
    while frame is not None and frame.f_code.co_filename.endswith(("/random.py", "_generator.pyx")):
        frame = frame.f_back
    return frame is not None and not is_internal(frame.f_code)


def observe(
    run: Callable[[], Any],
    roots: Any,
    annotations: Annotations,
    reads: HostReads,
    inputs: set[int],
) -> Iteration:
    """Run one eager iteration; ``inputs`` are keys of the storages of the callables' arguments."""
    iteration = Iteration()
    recorder = _Recorder(roots, annotations, iteration, inputs)
    # As the end of autocast does: casts that it keeps would be ops of the first iteration only.
    torch.clear_autocast_cache()
    # Callbacks and finalizers would look like the user's code.
    with without_collector(), recorder, _CallProfile(reads, iteration):
        run()
    iteration.state = reads.snapshot()
    iteration.record = recorder.record
    return iteration
