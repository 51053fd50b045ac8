"""One eager iteration: its ops, what the user's code called, and the random numbers and times that
the host used."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import queue
import random
import sys
import threading
import types
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from cgtool.model.capture import Frames
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import takes_shape
from cgtool.observe.flow_names import parameters_of
from cgtool.observe.flows import Ran
from cgtool.observe.frames import (
    Chain,
    call_user,
    chain_of,
    frames_of,
    is_internal,
    is_internal_file,
    locals_of,
    package_part,
    position_of,
    sites_until,
    user_frame,
)
from cgtool.observe.handed_work import FollowingProfile, followed_work
from cgtool.observe.host_reads import HostReads, Snapshot, used_by_others
from cgtool.observe.host_values import (
    CONTAINERS,
    NUMBERS,
    SHARED,
    parts_of,
    random_state,
    value_of,
)
from cgtool.recapture.ops import KeptOpRecorder, Op
from cgtool.observe.ops import OpRecorder, Record
from cgtool.observe.servers import serving
from cgtool.observe.source import COMPREHENSIONS, Position, call_at, called_at, names_in
from cgtool.observe.tensors import has_memory, on_host, tensors_in
from cgtool.observe.uses import CHANGES, reads_of
from cgtool.observe.waiting import handed_over_at
from cgtool.torch_compat.patches import set_profile, without_collector
from cgtool.torch_compat.private import (
    CALL_MODULE_CODE,
    VERSION,
    generator_key,
    no_torch_function,
    storage_address,
)
from cgtool.torch_compat.storages import StorageRef


@dataclass(frozen=True)
class SchedulerStep:
    """A learning rate scheduler of PyTorch that the iteration stepped."""

    scheduler: str
    """Its class."""
    optimizer: torch.optim.Optimizer
    frames: Frames


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
    """By the call that drew a random number: the state of its generator after the iteration; by one
    that read a context variable: its value."""
    drawn_on: set[Position] = field(default_factory=set)
    """The calls that drew random numbers from a generator that goes on from call to call: the one
    of Python or of PyTorch, which the code does not seed."""
    seeded: set[Position] = field(default_factory=set)
    """The calls that drew from a generator that the code had given a seed, or a state."""
    seeding: dict[int, tuple[Any, Frames]] = field(default_factory=dict)
    """By id: the generators of the device whose seed or state the code sets, and where."""
    shared: dict[Position, list[Any]] = field(default_factory=dict)
    """By the call that reads what other threads have left: the queues and events it was left in."""
    given: list[Any] = field(default_factory=list)
    """The queues and events that the code fills or sets."""
    answered: list[Any] = field(default_factory=list)
    """Those in which only the code and threads that serve it leave something."""
    storages: dict[int, StorageRef] = field(default_factory=dict)
    """All storages of arguments and results of ops, by key."""
    emptied: set[int] = field(default_factory=set)
    """Those whose memory it gave back: the next iteration takes other memory for them."""
    returned: set[int] = field(default_factory=set)
    """Those of what its outermost functions returned."""
    filled: set[int] = field(default_factory=set)
    """Those on the host into which the device copies: a replay fills them too."""

    outer: Chain = ()
    """The frames around the iteration, of a program that has called cgtool."""

    def is_answer(self, position: Position, earlier: Iteration) -> bool:
        """Whether what a call reads comes from the code, or from threads that have served it. They
        fill its queues and events, or it has made these itself: the iteration before had others."""
        read = set(map(id, self.shared.get(position, ())))
        before = set(map(id, earlier.shared.get(position, ())))
        is_new = bool(before) and before.isdisjoint(read)
        return bool(read) and (is_new or read <= set(map(id, self.answered)))

    def outlived(self, storage: int) -> bool:
        """Whether a storage is still alive after the iteration."""
        return not self.storages[storage].expired()


class _OfThread(threading.local):
    """What a thread is in, one inside the other."""

    contexts = 0
    """Calls of `Context.run`."""
    imports = 0
    """Imports: what they run is not the iteration's."""


class CallProfile(FollowingProfile):
    """Notes what the user's code calls: its own functions, whose frames are passed to ``reads``,
    and what returns random numbers or times."""

    def __init__(self, reads: HostReads, iteration: Iteration, recorder: OpRecorder) -> None:
        self.reads, self.iteration, self.recorder = reads, iteration, recorder
        self.ran, self.scheduled = iteration.ran, iteration.scheduled
        self.owners: dict[Position, Any] = {}
        self._seeded: list[random.Random | torch.Generator] = []
        """Generators that the code seeds, or sets the state of."""
        self._given_to: dict[int, list[tuple[torch.Tensor, int]]] = {}
        """By id of a running frame that PyTorch called: the tensors that it got, and their
        versions."""
        self._of_thread = _OfThread()
        self._lock = threading.RLock()
        self._has_ended = False
        self._own_threads = {threading.get_ident()}
        """That of the code, and those of autograd that run its backward."""
        self._given_by_threads: set[int] = set()
        """The ids of queues and events that other threads fill or set."""

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        with self._lock:
            if self._has_ended:
                # Another thread still works.
                sys.setprofile(None)
            else:
                self._note(frame, event, argument)

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code, running = frame.f_code, self._of_thread
        if code.co_name == "_find_and_load" and code.co_filename == _IMPORT_FILE:
            running.imports += (event == "call") - (event == "return")
            return
        if running.imports > 0 or _is_silent(code.co_filename):
            return
        if event == "call":
            if not is_internal(code):
                self.reads.add_frame(frame)
                self._note_call(frame)
                if frame.f_back is not None and package_part(frame.f_back.f_code.co_filename):
                    self._given_to[id(frame)] = _versions_of(frame)
                    if not _passes_result_on(frame):
                        self.ran.answering.add(id(frame.f_code))
            elif code.co_filename.endswith(_READS_OF_LIBRARIES.get(code.co_name, ())):
                self._draw("host", _caller_of(frame), frame.f_locals.get("self"))
            elif code.co_filename.endswith(_GIVEN_IN_LIBRARIES.get(code.co_name, ())):
                self._give(frame.f_locals.get("self"))
            elif code.co_name == "step" and code.co_filename.endswith(
                "/torch/optim/lr_scheduler.py"
            ):
                self._note_scheduler(frame)
        elif event == "return":
            if not is_internal(code):
                self.reads.add_locals(frame)
                self._note_tensors(frame)
                self._note_returned(code, argument)
                given = self._given_to.pop(id(frame), None)
                if given is not None and _is_changed(given, argument):
                    self.ran.replacing[id(code)] = code
                if VERSION in names_in(code):
                    self._note_versions(frame)
                if id(code) in self.ran.outputs:
                    tensors = filter(has_memory, tensors_in(argument))
                    self.iteration.returned |= set(map(storage_address, tensors))
                if self.ran.outputs.get(id(code), 0) is None:
                    parts = argument if isinstance(argument, tuple) else (argument,)
                    self.ran.outputs[id(code)] = tuple(bool([*tensors_in(part)]) for part in parts)
        elif event == "c_call":
            owner = getattr(argument, "__self__", None)
            kind = _kind_of_source(argument)
            if kind is not None:
                self._draw(kind, frame, owner)
            elif isinstance(owner, random.Random | type(torch.default_generator)):
                # `torch.Generator.seed` draws the seed.
                is_set = argument.__name__ != "seed" or isinstance(owner, random.Random)
                if is_set and not _is_own(frame):
                    self._seeded.append(owner)
                    self._note_seed(frame)
                is_on_device = not isinstance(owner, random.Random) and owner.device.type != "cpu"
                if is_on_device and argument.__name__ in _SEEDS and not is_internal(code):
                    seeding = owner, frames_of(chain_of(frame))
                    self.iteration.seeding.setdefault(id(owner), seeding)
            elif isinstance(owner, queue.SimpleQueue) and argument.__name__ == "put":
                self._give(owner)
            elif isinstance(owner, CONTAINERS):
                if argument.__name__ in CHANGES and not is_internal(code):
                    self.ran.changing.add((code.co_filename, frame.f_lineno))
            elif isinstance(owner, Context) and argument.__name__ == "run":
                running.contexts += 1
            elif running.contexts > 0 and isinstance(owner, ContextVar):
                # Outside a context of its own, a variable is watched by its name.
                position = position_of((code, frame.f_lasti))
                self.ran.drawn[position] = "host"
                value = value_of(owner)
                self.iteration.generators[position] = value.content if value else None
        elif running.contexts > 0 and isinstance(getattr(argument, "__self__", None), Context):
            running.contexts -= 1

    def _give(self, owner: Any) -> None:
        """A queue is filled, or an event set."""
        self.iteration.given.append(owner)
        if threading.get_ident() not in self._own_threads:
            self._given_by_threads.add(id(owner))

    def hands_over(self, function: Any) -> None:
        kind = _kind_of_source(function)
        if kind is not None:
            self._draw(kind, user_frame(sys._getframe(1)), getattr(function, "__self__", None))

    def follow_backward(self) -> None:
        """This is a thread of autograd's, which runs a backward of the code: follow the hooks and
        functions that begin on it from now on."""
        self._own_threads.add(threading.get_ident())
        if sys.getprofile() is not self:
            sys.setprofile(self)

    def note_running(self, frame: types.FrameType) -> None:
        """A function of the user's runs on a thread that has no profile."""
        if not is_internal(frame.f_code):
            self.reads.add_frame(frame)
            self._note_call(frame)
            self._note_tensors(frame)
            locals_of(frame)

    def note_servers(self) -> None:
        """Note the functions of other threads that serve the code, and the queues and events that
        only the code itself uses."""
        # What others leave in a queue may have been there before; an event is set by somebody.
        asked = [each for owners in self.iteration.shared.values() for each in owners]
        owned = [each for each in asked if isinstance(each, threading.Event)]
        if owned or self.iteration.given:
            shared = used_by_others() | self._given_by_threads
            owned += self.iteration.given
            self.iteration.answered += [each for each in owned if id(each) not in shared]
        for frame, answers in serving(self.iteration.given):
            self.ran.codes[id(frame.f_code)] = frame.f_code
            self.ran.serving.add(id(frame.f_code))
            self.reads.add_frame(frame)
            self.iteration.answered += [
                each for each in answers if isinstance(each, threading.Event) or each.empty()
            ]

    def note_made(self) -> None:
        """Note the queues and events that the code has made itself, and nothing holds anymore: each
        call has others."""
        asked = {id(each): each for owners in self.iteration.shared.values() for each in owners}
        ours: list[Any] = [self.owners, self.iteration.given, self.iteration.answered, asked]
        ours += self.iteration.shared.values()
        ours += [part for parts in self.ran.contents.values() for part in parts.values()]
        known = set(map(id, ours))
        self.iteration.answered += [
            each
            for each in asked.values()
            if all(
                id(holder) in known or isinstance(holder, types.FrameType)
                for holder in gc.get_referrers(each)
            )
        ]

    def _note_tensors(self, frame: types.FrameType) -> None:
        names = self.ran.tensors.setdefault(id(frame.f_code), set())
        numbers = self.ran.numbers.setdefault(id(frame.f_code), set())
        for name, value in frame.f_locals.items():
            if type(value) in NUMBERS:
                numbers.add(name)
            for suffix, part in parts_of(value):
                if isinstance(part, torch.Tensor) and not on_host(part):
                    names.add(f"{name}{suffix}")
            if self.ran.handed and isinstance(value, (*CONTAINERS, *SHARED)):
                held = self.ran.contents.setdefault(id(frame.f_code), {})
                held.setdefault(name, {})[id(value)] = value

    def _note_returned(self, code: types.CodeType, value: Any) -> None:
        tensors = {
            suffix
            for suffix, part in parts_of(value)
            if isinstance(part, torch.Tensor) and not on_host(part)
        }
        self.ran.returned[id(code)] = tensors & self.ran.returned.get(id(code), tensors)

    def _note_versions(self, frame: types.FrameType) -> None:
        """Whoever refills an input before a replay changes its version (``x._version``)."""
        inputs = self.recorder.inputs
        for root, position in reads_of(frame.f_code, VERSION) if inputs else ():
            tensor = frame.f_locals.get(root)
            if isinstance(tensor, torch.Tensor) and storage_address(tensor) in inputs:
                self.ran.drawn[position] = "version"

    def _note_call(self, frame: types.FrameType) -> None:
        """A function of the user's begins: which expression called it?"""
        code, caller = frame.f_code, frame.f_back
        if code.co_name in COMPREHENSIONS:
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
        given = handed_over_at() if caller is None else ()
        if given:
            self.ran.handed.setdefault(position_of(given[0]), set()).add(id(code))
            return
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
        if (
            isinstance(optimizer, torch.optim.Optimizer)
            and chain
            and not known
            and not _is_done_by_ops(scheduler, optimizer)
        ):
            name = type(scheduler).__name__
            self.scheduled.append(SchedulerStep(name, optimizer, frames_of(chain)))

    def _note_seed(self, frame: types.FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename.endswith("/random.py"):
            frame = frame.f_back
        if frame is not None and not is_internal(frame.f_code):
            self.ran.seeds.add(position_of((frame.f_code, frame.f_lasti)))

    def is_seeded(self, generator: Any) -> bool:
        """Whether the code has given a generator a seed, or a state."""
        key = _generator_key(generator)
        return any(_generator_key(each) == key for each in self._seeded)

    def _draw(self, kind: str, frame: types.FrameType | None, owner: Any = None) -> None:
        """A function returns a value that is never the same; the user's code must have called it,
        directly or through Python code of ``random`` and its like."""
        settled = False
        while frame is not None and frame.f_code.co_filename.endswith(_SOURCE_FILES):
            settled |= frame.f_code.co_name.startswith("_randbelow") and frame.f_locals["n"] == 1
            frame = frame.f_back
        if frame is not None and not is_internal(frame.f_code):
            position = position_of((frame.f_code, frame.f_lasti))
            if settled:
                self.ran.settled.add(position)
            elif not _is_seeded(position):
                self.ran.drawn[position] = kind
                self.owners[position] = owner
                if self.is_seeded(owner):
                    self.iteration.seeded.add(position)
                if kind == "host":
                    self.iteration.shared.setdefault(position, []).append(owner)

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        self._following = contextlib.ExitStack()
        self._following.enter_context(followed_work())
        sys.setprofile(self)

    def __exit__(self, *_exc: Any) -> None:
        set_profile(self._before)
        self._following.close()
        with self._lock:
            self._has_ended = True

    def finish(self) -> None:
        """Complete the iteration, whose ops are known by now."""
        self.iteration.generators |= {
            position: state
            for position, owner in self.owners.items()
            if (state := random_state(owner)) is not None
        }
        drawing = random.random.__self__  # type: ignore[attr-defined]
        if not self.is_seeded(drawing):
            own = (position for position, owner in self.owners.items() if owner is drawing)
            self.iteration.drawn_on.update(own)
        others: set[Position] = set()
        using_values: set[Position] = set()
        for op in self.iteration.ops:
            if not op.host:
                positions = [position_of(site) for site in op.call.chain]
                if not takes_shape(op.call.name):
                    using_values.update(positions[:1])
                (self.ran.reads if op.reads_device else others).update(positions[:1])
                self.ran.ops.update(positions[:1])
                self.ran.around.update(positions)
                if op.fills_host:
                    self.ran.drawn.update(dict.fromkeys(positions[:1], "copied"))
            elif op.random and op.call.chain:
                position = position_of(op.call.chain[0])
                self.ran.drawn[position] = "random"
                if not any(isinstance(each, torch.Generator) for each in self._seeded):
                    self.iteration.drawn_on.add(position)
                if op.is_seeded:
                    self.iteration.seeded.add(position)
                if op.drawn_from is not None:
                    earlier = self.iteration.generators.get(position)
                    self.iteration.generators[position] = hash((earlier, op.drawn_from))
        self.ran.shapes |= self.ran.ops - using_values
        # What also runs other ops (`x.add_(y, alpha=rate)`) returns a tensor.
        for position in self.ran.reads - others:
            self.ran.drawn.setdefault(position, "read")


def _versions_of(frame: types.FrameType) -> list[tuple[torch.Tensor, int]]:
    """The tensors that a function got as arguments, their gradients, and the versions of both."""
    values = frame.f_locals
    with no_torch_function():
        return [
            (tensor, -1 if tensor.is_inference() else int(getattr(tensor, VERSION)))
            for name in parameters_of(frame.f_code)
            for own in tensors_in(values.get(name))
            for tensor in (own, own.grad if own.is_leaf else None)
            if tensor is not None
        ]


def _passes_result_on(frame: types.FrameType) -> bool:
    """Whether the result of a function that PyTorch calls is that of what the user's code calls:
    `forward` of a module, or a function behind `torch.no_grad()`."""
    code, caller = frame.f_code, frame.f_back
    if caller is not None and caller.f_code.co_name == "decorate_context":
        return True
    owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return code.co_name == "forward" and isinstance(owner, torch.nn.Module)


def _is_changed(given: list[tuple[torch.Tensor, int]], returned: Any) -> bool:
    """Whether a function has returned other tensors than it got, or written into those."""
    known = {id(tensor) for tensor, _ in given}
    if any(id(tensor) not in known for tensor in tensors_in(returned)):
        return True
    with no_torch_function():
        # An inference tensor has none.
        followed = [(tensor, version) for tensor, version in given if version >= 0]
        return any(getattr(tensor, VERSION) != version for tensor, version in followed)


_IMPORT_FILE = "<frozen importlib._bootstrap>"
_PASSES_ARGUMENTS = ("_wrapped_call_impl", CALL_MODULE_CODE.co_name, "decorate_context", "inner")
"""Functions of PyTorch that pass on their arguments in order."""
_SOURCE_FILES = (
    "/random.py", "/secrets.py", "/uuid.py", "/tempfile.py", "/pathlib.py", "/pathlib/_local.py",
    "/pathlib/__init__.py", "/genericpath.py", "<frozen genericpath>", "/json/__init__.py",
    "/configparser.py",
)  # fmt: skip
"""Of Python's: what their functions return comes from a source that they call."""
_READS_OF_LIBRARIES = {
    **dict.fromkeys(
        ("memory_allocated", "memory_reserved", "mem_get_info"),
        ("/torch/cuda/memory.py", "/cgtool/devices/simulated/cuda_calls.py"),
    ),
    **dict.fromkeys(("get", "get_nowait", "qsize"), ("/queue.py",)),
    "is_set": ("/threading.py",),
}
"""Functions in Python that return what others on the host have changed, and their files."""
_GIVEN_IN_LIBRARIES = {"put": ("/queue.py",), "set": ("/threading.py",)}
"""Functions in Python that leave something for other threads, and their files."""
_HEARD = (
    *_SOURCE_FILES,
    *itertools.chain(*_READS_OF_LIBRARIES.values()),
    "/torch/optim/lr_scheduler.py",
)


@cache
def _is_done_by_ops(scheduler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether ops alone compute the next learning rate, from the one before: a replay runs them.
    ``ExponentialLR`` multiplies a tensor; the others compute with the number of the step."""
    kind, plain = type(scheduler), torch.optim.lr_scheduler.LRScheduler
    compute = getattr(kind.get_lr, "__code__", None)
    return (
        kind.step is plain.step
        and compute is not None
        and "last_epoch" not in names_in(compute)
        and all(
            isinstance(rate := group.get("lr"), torch.Tensor) and not on_host(rate)
            for group in optimizer.param_groups
        )
    )


@cache
def _is_silent(file: str) -> bool:
    """Whether nothing is noted of what the code of a file calls: most calls of an iteration are
    PyTorch's and cgtool's own."""
    return is_internal_file(file) and not file.endswith(_HEARD)


_READS_IN_C: dict[str, tuple[str, tuple[str, ...]]] = {
    "_queue": ("host", ("get", "get_nowait", "qsize", "empty")),
    "_socket": ("host", ("recv", "recv_into", "recvfrom")),
    "_io": ("file", ("read", "readline", "readlines", "readinto", "__next__")),
    "sqlite3": ("database", ("execute", "fetchone", "fetchmany", "fetchall")),
}
"""Methods in C that return what others have put there, by the module of their objects."""
_LOOKS_AT_FILES = ("stat", "access", "listdir", "scandir")
_CLOCKS = {"posix": ("urandom", "getloadavg", "times"), "nt": ("urandom", "times")}


def _kind_of_source(function: Any) -> str | None:
    """``random``, ``clock``, ``file``, ... for a function in C that returns one, else None."""
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
    if name in _LOOKS_AT_FILES and owner.__name__ in _CLOCKS:
        return "file"
    return "file" if owner.__name__ in ("io", "_io") and name == "open" else None


def _caller_of(frame: types.FrameType) -> types.FrameType | None:
    """What has called a function that cgtool may have wrapped."""
    caller = frame.f_back
    while caller is not None and package_part(caller.f_code.co_filename).startswith("/cgtool/"):
        caller = caller.f_back
    return caller


_SEEDS = frozenset(("manual_seed", "seed", "set_state", "set_offset", "graphsafe_set_state"))
"""Methods of ``torch.Generator``."""


def _is_own(frame: types.FrameType | None) -> bool:
    """Whether cgtool called the function of PyTorch or Python that runs, or none was called."""
    while frame is not None and frame.f_code.co_filename.endswith("/random.py"):
        frame = frame.f_back
    return frame is None or package_part(frame.f_code.co_filename).startswith("/cgtool/")


def _generator_key(generator: Any) -> int:
    # Ops get objects of their own for a generator of PyTorch.
    is_torch = isinstance(generator, type(torch.default_generator))
    return generator_key(generator) if is_torch else id(generator)


def _is_seeded(position: Position) -> bool:
    """Whether what is drawn is not used: NumPy's ``RandomState(1)`` takes a seed from the system
    first, and then the one that it is given."""
    call = call_at(position)
    return call is not None and bool(call.args) and called_at(position) == "RandomState"


def observe(
    run: Callable[[], Any], roots: Any, annotations: Annotations, reads: HostReads, inputs: set[int]
) -> Iteration:
    """Run one eager iteration; ``inputs`` are keys of the storages of the callables' arguments."""
    recorder = KeptOpRecorder(roots, annotations, inputs)
    iteration = Iteration(
        recorder.ops, record=recorder.record, storages=recorder.storages, filled=recorder.filled
    )
    iteration.outer = tuple(sites_until(sys._getframe(1), None)[0])
    # As the end of autocast does: casts that it keeps would be ops of the first iteration only.
    torch.clear_autocast_cache()
    profile = CallProfile(reads, iteration, recorder)
    # Callbacks and finalizers would look like the user's code. A profile sees one thread: autograd
    # has another one for each GPU, on which it runs the user's backward functions and hooks.
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with without_collector(), one_thread, recorder, profile:
        run()
    iteration.emptied = {key for key, each in recorder.storages.items() if each.is_emptied()}
    profile.note_servers()
    iteration.state = reads.snapshot()
    profile.finish()
    return iteration
