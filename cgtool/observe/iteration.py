"""One eager iteration: its ops as a graph would keep them, and the random numbers and times that
the host used."""

from __future__ import annotations

import io
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import UNINITIALISED, Uninitialised, overwrites, written_by
from cgtool.observe.flows import Ran
from cgtool.observe.frames import (
    call_op,
    call_user,
    chain_of,
    frames_of,
    is_internal,
    is_internal_file,
    package_part,
    position_of,
)
from cgtool.observe.host_reads import HostReads, Snapshot
from cgtool.observe.host_values import random_state
from cgtool.observe.ops import OpCall, OpRecorder, Record, op_name
from cgtool.observe.source import Position
from cgtool.observe.tensors import has_memory, on_host, tensors_in
from cgtool.torch_compat.op_key import may_have_python_kernel
from cgtool.torch_compat.patches import without_collector
from cgtool.torch_compat.private import CALL_MODULE_CODE, pytree, storage_address
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


@dataclass(frozen=True, slots=True)
class OutsideTensor:
    """A device tensor that an op reads and that the iteration did not create."""

    position: int
    memory: range
    shape: tuple[int, ...]
    parameter: bool
    storage: int
    """Key of its storage; ``Iteration.storages`` keeps the key from being reused."""

    @property
    def address(self) -> int:
        return self.memory.start


@dataclass(slots=True)
class Op:
    """One op of an iteration, reduced to what a graph would keep."""

    call: OpCall
    numbers: tuple[Any, ...]
    """Numbers and strings among the arguments, and the values of small CPU tensors, with their
    positions."""
    outside: tuple[OutsideTensor, ...]
    host: bool
    """All tensors of the op are on the host: those it gets, or else its results."""
    host_scalar: bool
    """A device op got a 0-dim CPU tensor from before the iteration as a number."""
    read_on_host: dict[int, int] = field(default_factory=dict)
    """The storages of the CPU tensors among ``numbers``, by position."""
    fills_host: bool = False
    """It copies from the device to the host, and does not wait."""
    random: bool = False
    """It draws random numbers."""
    in_optimizer: bool = False
    """An optimizer of PyTorch runs it."""
    host_input: bool = False
    """That tensor is an argument of the callable, which a caller refills."""
    writes_input: bool = False
    """It writes to an argument of the callable."""
    reads_nothing_of: int | None = None
    """Index of the call that allocated memory which this op reads before anything is written."""


@dataclass(frozen=True)
class SchedulerStep:
    """A learning rate scheduler of PyTorch that the iteration stepped."""

    scheduler: str
    """Its class."""
    optimizer: torch.optim.Optimizer
    frames: tuple[Frame, ...]


@dataclass
class Iteration:
    """What one eager iteration did."""

    ops: list[Op] = field(default_factory=list)
    ran: Ran = field(default_factory=Ran)
    scheduled: list[SchedulerStep] = field(default_factory=list)
    state: Snapshot = field(default_factory=dict)
    """The values on the host that the code reads, after the iteration."""
    record: Record = field(default_factory=Record)
    generators: dict[Position, Any] = field(default_factory=dict)
    """By the call that drew a random number: the state of its generator after the iteration."""
    storages: dict[int, StorageRef] = field(default_factory=dict)
    """All storages of arguments and results of ops, by key."""
    filled: set[int] = field(default_factory=set)
    """Those on the host into which the device copies: a replay fills them too."""

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
        self._host_storages: set[int] = set()
        self._overwritten: dict[int, list[range]] = {}
        """By storage: memory that ops have written without reading it."""
        self._empty = Uninitialised()

    def observe(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        caller: types.FrameType | None,
    ) -> Any:
        profile = sys.getprofile()

        def run_profiled(*args: Any, **kwargs: Any) -> Any:
            sys.setprofile(profile)
            try:
                return call_op(run, args, kwargs)
            finally:
                sys.setprofile(None)

        # The calls of this recorder are a thousand for an op. Only those of a kernel in Python are
        # the user's.
        sys.setprofile(None)
        try:
            may_be_users = may_have_python_kernel(op_name(func))
            return super().observe(
                func, args, kwargs, run_profiled if may_be_users else run, caller
            )
        finally:
            sys.setprofile(profile)

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        op = self._op(call, func, args, kwargs)
        if op is not None and op.host_scalar:
            op.host_scalar = not copies_to_device(func, args, kwargs, on_host)
        before = self._note_storages((args, kwargs))
        unread = self._empty.read_by(func, call.name, args, kwargs)
        result = self.run(func, args, kwargs)
        new = self._note_storages(result) - before
        if call.name.startswith("aten::lift_fresh"):
            # A constant of the code: created in C++, and passed to this op first.
            new = self._note_storages(result)
        self._storages |= new
        if op is not None and not any(map(has_memory, tensors_in((args, kwargs)))):
            # It creates tensors.
            places = list(map(on_host, tensors_in(result)))
            op.host = bool(places) and all(places)
        if op is not None and call.name.startswith(COPIES):
            op.host = op.host and all(map(on_host, tensors_in(result)))
        if (op is None and all(map(on_host, tensors_in(result)))) or (op is not None and op.host):
            self._by_host |= new
        if call.name.startswith(UNINITIALISED) and _called_by_user(sys._getframe(1)):
            self._empty.allocated(call.index, result)
        if op is not None:
            op.random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
            op.reads_nothing_of = unread
            written = list(filter(has_memory, written_by(func, args, kwargs)))
            op.writes_input = any(storage_address(tensor) in self.inputs for tensor in written)
            if call.name.startswith(COPIES) and not op.host and _does_not_wait(args, kwargs):
                filled = [each for each in storages_in(result).values() if on_host(each)]
                op.fills_host = bool(filled)
                self.iteration.filled.update(map(storage_address, filled))
            if overwrites(call.name):
                for tensor in written:
                    storage = storage_address(tensor)
                    self._overwritten.setdefault(storage, []).append(_range_of(tensor))
                op.outside = tuple(
                    tensor
                    for tensor in op.outside
                    if not self._is_overwritten(tensor.storage, tensor.memory)
                )
            self.iteration.ops.append(op)
        return result

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        """The simulated device marks no views that PyTorch makes in C++: their storage says it."""
        storage = storage_address(tensor)
        if on_host(tensor):
            self._host_storages.add(storage)
        return storage in self._host_storages

    def _note_storages(self, value: Any) -> set[int]:
        tensors = storages_in(value)
        for key, tensor in tensors.items():
            if key not in self.iteration.storages:
                self.iteration.storages[key] = StorageRef(tensor)
        return set(tensors)

    def _is_overwritten(self, storage: int, memory: range) -> bool:
        return any(
            memory.start in known and memory.stop <= known.stop
            for known in self._overwritten.get(storage, ())
        )

    def _op(self, call: OpCall, func: Any, args: Any, kwargs: Any) -> Op | None:
        if call.name.startswith(SKIPPED):
            return None
        # What is overwritten is not read.
        unread = set(map(id, written_by(func, args, kwargs))) if overwrites(call.name) else ()
        read_on_host: dict[int, int] = {}
        numbers: list[Any] = []
        outside: list[OutsideTensor] = []
        places: list[bool] = []
        host_scalar = host_input = False
        for position, argument in enumerate(pytree.tree_leaves((args, kwargs))):
            if isinstance(argument, torch.Tensor):
                if not has_memory(argument):
                    continue
                host = self._is_on_host(argument)
                places.append(host)
                storage = storage_address(argument)
                memory = _range_of(argument)
                is_outside = storage not in self._storages and not self._is_overwritten(
                    storage, memory
                )
                if host:
                    # A CPU result of a device op (the seed of an attention kernel) is not a number
                    # of the user's.
                    is_known = is_outside or storage in self._by_host
                    if is_known and argument.numel() <= _SMALL and id(argument) not in unread:
                        numbers.append((position, str(argument.tolist())))
                        read_on_host[position] = storage
                    host_scalar |= is_outside and argument.dim() == 0
                    host_input |= argument.dim() == 0 and storage in self.inputs
                elif is_outside:
                    is_parameter = isinstance(argument, torch.nn.Parameter)
                    shape = tuple(argument.shape)
                    outside.append(OutsideTensor(position, memory, shape, is_parameter, storage))
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
            read_on_host,
            host_input=host_input,
            in_optimizer=inside(sys._getframe(2), "/torch/optim/"),
        )


def storages_in(value: Any) -> dict[int, torch.Tensor]:
    """A tensor on each storage in a nested value, by the key of the storage."""
    return {storage_address(tensor): tensor for tensor in tensors_in(value) if has_memory(tensor)}


def _does_not_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a copy is ``non_blocking``."""
    return bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))


def _range_of(tensor: torch.Tensor) -> range:
    """Its addresses; empty ones at its first address if it has gaps."""
    size = tensor.numel() * tensor.element_size() if tensor.is_contiguous() else 0
    return range(tensor.data_ptr(), tensor.data_ptr() + size)


def inside(frame: types.FrameType | None, part: str) -> bool:
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


class CallProfile:
    """Notes what the user's code calls: its own functions, whose frames are passed to ``reads``,
    and what returns random numbers or times."""

    def __init__(self, reads: HostReads, iteration: Iteration, recorder: OpRecorder) -> None:
        self.reads, self.iteration, self.recorder = reads, iteration, recorder
        self.ran, self.scheduled = iteration.ran, iteration.scheduled
        self.owners: dict[Position, Any] = {}
        self._imports = 0
        """The imports that run, one inside the other: what they run is not the iteration's."""

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == _IMPORT_FILE:
            self._imports += (event == "call") - (event == "return")
            return
        if self._imports > 0 or _is_silent(code.co_filename):
            return
        if event == "call":
            if not is_internal(code):
                self.reads.add_frame(frame)
                self._note_call(frame)
            elif code.co_filename.endswith(_READS_OF_LIBRARIES.get(code.co_name, ())):
                self._draw("host", frame.f_back)
            elif code.co_name == "step" and code.co_filename.endswith(
                "/torch/optim/lr_scheduler.py"
            ):
                self._note_scheduler(frame)
        elif event == "return":
            if not is_internal(code):
                self.reads.add_locals(frame)
                names = self.ran.tensors.setdefault(id(code), set())
                for name, value in frame.f_locals.items():
                    if isinstance(value, torch.Tensor) and not on_host(value):
                        names.add(name)
                if self.ran.outputs.get(id(code), 0) is None:
                    parts = argument if isinstance(argument, tuple) else (argument,)
                    self.ran.outputs[id(code)] = tuple(bool([*tensors_in(part)]) for part in parts)
        elif event == "c_call":
            kind = _kind_of_source(argument)
            if kind is not None:
                self._draw(kind, frame, getattr(argument, "__self__", None))

    def _note_call(self, frame: types.FrameType) -> None:
        """A function of the user's begins: which expression called it?"""
        code, caller = frame.f_code, frame.f_back
        if code.co_name in _COMPREHENSIONS:
            return
        self.ran.codes[id(code)] = code
        if self.recorder.running.call is not None:
            self.ran.hidden.add(id(code))
        is_direct = True
        while caller is not None and is_internal(caller.f_code):
            if caller.f_code is call_user.__code__:
                caller = None
                break
            is_direct = is_direct and caller.f_code.co_name in _PASSES_ARGUMENTS
            caller = caller.f_back
        if caller is None:
            self.ran.outputs.setdefault(id(code), None)
            return
        position = position_of((caller.f_code, caller.f_lasti))
        called = self.ran.called.setdefault(position, {})
        called[id(code)] = called.get(id(code), True) and is_direct

    def _note_scheduler(self, frame: types.FrameType) -> None:
        scheduler = frame.f_locals.get("self")
        optimizer = getattr(scheduler, "optimizer", None)
        chain = chain_of(frame)
        known = any(step.optimizer is optimizer for step in self.scheduled)
        if isinstance(optimizer, torch.optim.Optimizer) and chain and not known:
            name = type(scheduler).__name__
            self.scheduled.append(SchedulerStep(name, optimizer, frames_of(chain)))

    def _draw(self, kind: str, frame: types.FrameType | None, owner: Any = None) -> None:
        """A function returns a value that is never the same; the user's code must have called it,
        directly or through Python code of ``random`` and its like."""
        while frame is not None and frame.f_code.co_filename.endswith(_SOURCE_FILES):
            frame = frame.f_back
        if frame is not None and not is_internal(frame.f_code):
            position = position_of((frame.f_code, frame.f_lasti))
            self.ran.drawn[position] = kind
            self.owners[position] = owner

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self)

    def __exit__(self, *_exc: Any) -> None:
        sys.setprofile(self._before)

    def finish(self) -> None:
        """Complete the iteration, whose ops are known by now."""
        self.iteration.generators = {
            position: state
            for position, owner in self.owners.items()
            if (state := random_state(owner)) is not None
        }
        for op in self.iteration.ops:
            if not op.host:
                positions = [position_of(site) for site in op.call.chain]
                self.ran.ops.update(positions[:1])
                self.ran.around.update(positions)
                if op.fills_host:
                    self.ran.drawn.update(dict.fromkeys(positions[:1], "copied"))
            elif op.random and op.call.chain:
                self.ran.drawn[position_of(op.call.chain[0])] = "random"


_IMPORT_FILE = "<frozen importlib._bootstrap>"
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_PASSES_ARGUMENTS = ("_wrapped_call_impl", CALL_MODULE_CODE.co_name, "decorate_context", "inner")
"""Functions of PyTorch that pass on their arguments in order."""
_SOURCE_FILES = ("/random.py", "/secrets.py", "/uuid.py", "/tempfile.py")
_READS_OF_LIBRARIES = {
    "memory_allocated": "/torch/cuda/memory.py",
    "memory_reserved": "/torch/cuda/memory.py",
    "mem_get_info": "/torch/cuda/memory.py",
    "get": "/queue.py",
    "get_nowait": "/queue.py",
    "qsize": "/queue.py",
    "is_set": "/threading.py",
}
"""Functions in Python that return what others on the host have changed, and their files."""
_HEARD = (*_SOURCE_FILES, *_READS_OF_LIBRARIES.values(), "/torch/optim/lr_scheduler.py")


@cache
def _is_silent(file: str) -> bool:
    """Whether nothing is noted of what the code of a file calls: most calls of an iteration are
    PyTorch's and cgtool's own."""
    return is_internal_file(file) and not file.endswith(_HEARD)


_READS_IN_C: dict[str, tuple[str, tuple[str, ...]]] = {
    "_queue": ("host", ("get", "get_nowait", "qsize", "empty")),
    "_socket": ("host", ("recv", "recv_into", "recvfrom")),
    "_io": ("file", ("read", "readline", "readlines", "readinto", "__next__")),
}
"""Methods in C that return what others have put there, by the module of their objects."""
_CLOCKS = {"posix": ("urandom", "getloadavg", "times"), "nt": ("urandom", "times")}


def _kind_of_source(function: Any) -> str | None:
    """``random``, ``clock`` or ``file`` for a function in C that returns one, else None."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(owner, random.Random):
        return "random" if name != "seed" else None
    if isinstance(owner, type):
        is_clock = owner.__module__ == "datetime" and name in ("now", "utcnow", "today")
        return "clock" if is_clock else None
    if not isinstance(owner, types.ModuleType):
        kind, reads = _READS_IN_C.get(type(owner).__module__, ("", ()))
        return kind if name in reads and not isinstance(owner, io.BytesIO | io.StringIO) else None
    if owner.__name__ == "time":
        return "clock"
    if name in _CLOCKS.get(owner.__name__, ()):
        return "random" if name == "urandom" else "clock"
    return "file" if owner.__name__ in ("io", "_io") and name == "open" else None


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
    profile = CallProfile(reads, iteration, recorder)
    # Callbacks and finalizers would look like the user's code. A profile sees one thread: autograd
    # has another one for each GPU, on which it runs the user's backward functions and hooks.
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with without_collector(), one_thread, recorder, profile:
        run()
    iteration.state = reads.snapshot()
    iteration.record = recorder.record
    profile.finish()
    return iteration
