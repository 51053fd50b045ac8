"""One eager iteration, watched: its ops as a graph would keep them, and what the host drew.

Two of them are held against each other in ``repeat``; ``verify`` observes more.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import written_by
from cgtool.observe.frames import Site, chain_of, is_internal, package_part
from cgtool.observe.host_reads import HostReads, Snapshot
from cgtool.observe.op_memory import UNINITIALISED, Uninitialised
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.observe.placement import on_host
from cgtool.torch_compat.private import pytree, storage_key

_FEW = 64
SKIPPED = ("profiler::", "aten::detach", "aten::lift_fresh", "prim::", "aten::is_")


@dataclass(frozen=True, slots=True)
class Outside:
    """A device tensor among the arguments of an op that the iteration did not make."""

    position: int
    address: int
    shape: tuple[int, ...]
    parameter: bool
    storage: int
    """Its address as an object; ``Iteration.seen`` keeps it from being given to another one."""


@dataclass(slots=True)
class Op:
    """One op of an iteration, as far as a graph would keep it."""

    call: OpCall
    numbers: tuple[Any, ...]
    """Python numbers among the arguments, and the values of small host tensors."""
    outside: tuple[Outside, ...]
    host: bool
    """All tensors of the op lie on the host."""
    host_scalar: bool
    """A device op was given a host tensor of no dimensions that lived before the iteration."""
    in_optimizer: bool = False
    """An optimizer of PyTorch's runs it, of which ``optimizers`` tells."""
    writes_input: bool = False
    """It writes into a tensor that the callable is given."""
    reads_nothing_of: int | None = None
    """Index of the call that made memory which this op reads, and which nothing wrote before."""


@dataclass
class Iteration:
    """What one eager iteration did."""

    ops: list[Op] = field(default_factory=list)
    drawn: list[tuple[str, tuple[Site, ...]]] = field(default_factory=list)
    """Random numbers and clocks of the host that the code asked: (name, chain)."""
    state: Snapshot = field(default_factory=dict)
    """Afterwards."""
    record: Record = field(default_factory=Record)
    seen: dict[int, StorageWeakRef] = field(default_factory=dict)
    """All storages that ops were given or made."""

    def outlived(self, storage: int) -> bool:
        """True for a storage that somebody holds after the iteration."""
        return not self.seen[storage].expired()


class _Recorder(OpRecorder):
    """Keeps the arguments of each op."""

    def __init__(
        self, roots: Any, annotations: Annotations, iteration: Iteration, inputs: set[int]
    ) -> None:
        super().__init__(roots, annotations)
        self.iteration = iteration
        self.inputs = inputs
        self._storages: set[int] = set()
        self._by_host: set[int] = set()
        """Those of them that an op on host tensors made."""
        self._empty = Uninitialised()

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        op = self._op(call, args, kwargs)
        given = self._see((args, kwargs))
        unread = self._empty.read_by(func, call.name, args, kwargs)
        made = self.run(func, args, kwargs)
        new = self._see(made) - given
        if call.name.startswith("aten::lift_fresh"):
            # A constant of the code: made in C++, and handed to this op before any other sees it.
            new = self._see(made)
        self._storages |= new
        if (op is None and _all_on_host(made)) or (op is not None and op.host):
            self._by_host |= new
        if call.name.startswith(UNINITIALISED) and _users_own(sys._getframe(1)):
            self._empty.made(call.index, made)
        if op is not None:
            op.reads_nothing_of = unread
            op.writes_input = any(
                storage_key(one.untyped_storage()) in self.inputs
                for one in written_by(func, args, kwargs)
                if _plain(one)
            )
            self.iteration.ops.append(op)
        return made

    def _see(self, value: Any) -> set[int]:
        found = storages_in(value)
        for key, storage in found.items():
            if key not in self.iteration.seen:
                self.iteration.seen[key] = StorageWeakRef(storage)
        return set(found)

    def _op(self, call: OpCall, args: Any, kwargs: Any) -> Op | None:
        if call.name.startswith(SKIPPED):
            return None
        numbers: list[Any] = []
        outside: list[Outside] = []
        places: list[bool] = []
        host_scalar = False
        for position, one in enumerate(pytree.tree_leaves((args, kwargs))):
            if isinstance(one, torch.Tensor):
                if not _plain(one):
                    continue
                host = on_host(one)
                places.append(host)
                storage = storage_key(one.untyped_storage())
                from_outside = storage not in self._storages
                if host:
                    # What a device op leaves on the host (the seed of an attention kernel) is
                    # its own affair.
                    if one.numel() <= _FEW and (from_outside or storage in self._by_host):
                        numbers.append((position, str(one.tolist())))
                    host_scalar |= from_outside and one.dim() == 0
                elif from_outside:
                    is_parameter = isinstance(one, torch.nn.Parameter)
                    shape = tuple(one.shape)
                    outside.append(Outside(position, one.data_ptr(), shape, is_parameter, storage))
            elif type(one) in (bool, int, float, complex, str):
                numbers.append((position, one))
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
    found = (
        one.untyped_storage()
        for one in pytree.tree_leaves(value)
        if isinstance(one, torch.Tensor) and _plain(one)
    )
    return {storage_key(one): one for one in found}


def _all_on_host(value: Any) -> bool:
    return all(on_host(one) for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor))


def _inside(frame: types.FrameType | None, part: str) -> bool:
    """True when a file of that part stands between the op and the user's line."""
    while frame is not None and is_internal(frame.f_code):
        if package_part(frame.f_code.co_filename).startswith(part):
            return True
        frame = frame.f_back
    return False


def _users_own(frame: types.FrameType | None) -> bool:
    """False for the scratch memory of PyTorch's own Python code."""
    while frame is not None and package_part(frame.f_code.co_filename).startswith("/cgtool/"):
        frame = frame.f_back
    return frame is not None and not is_internal(frame.f_code)


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


class _Profile:
    """Shows every frame of the user's to ``reads``, and notes what is drawn on the host."""

    def __init__(self, reads: HostReads, iteration: Iteration) -> None:
        self.reads = reads
        self.iteration = iteration

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if not is_internal(frame.f_code):
                self.reads.see_one(frame)
        elif event == "c_call":
            name = _source_of_chance(argument)
            if name is not None and _asked_by_user(frame):
                self.iteration.drawn.append((name, chain_of(frame)))

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self)

    def __exit__(self, *_exc: Any) -> None:
        sys.setprofile(self._before)


def _source_of_chance(function: Any) -> str | None:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random"):
        return "random"
    if isinstance(owner, types.ModuleType) and owner.__name__ == "time":
        return "clock"
    return None


def _asked_by_user(frame: types.FrameType | None) -> bool:
    """random.randint is Python code of the standard library's that the user's code calls."""
    while frame is not None and frame.f_code.co_filename.endswith(("/random.py", "_generator.pyx")):
        frame = frame.f_back
    return frame is not None and not is_internal(frame.f_code)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Its callbacks and finalizers run at no place of the code's own, and would be taken for it."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def observe(
    run: Callable[[], Any],
    roots: Any,
    annotations: Annotations,
    reads: HostReads,
    inputs: set[int],
) -> Iteration:
    """One eager iteration; ``inputs`` are the storages of what the callables are given."""
    iteration = Iteration()
    recorder = _Recorder(roots, annotations, iteration, inputs)
    with without_collector(), recorder, _Profile(reads, iteration):
        run()
    iteration.state = reads.snapshot()
    iteration.record = recorder.record
    return iteration
