"""The op record: every ATen call of an iteration, in order, with its place in the user's code.

One recorder serves everything that needs ops. On a GPU it names the nodes of a capture: it records
a warm-up iteration, so the capture itself is not disturbed. On the simulated device the record is
the capture.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from cgtool.model.capture import Call
from cgtool.observe import captured_calls
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Chains, Site, call_op, chain_of, sites_until
from cgtool.observe.waiting import chain_or_waiting
from cgtool.torch_compat import control_flow, op_key
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.patches import Patches, set_profile
from cgtool.torch_compat.private import (
    BACKWARD,
    dynamo_is_loaded,
    load_dynamo,
    next_sequence_number,
    running_autograd_node,
    schema_of,
    sequence_number_of,
)

UNKNOWN = Call()
"""For calls that nothing is known of: every op that owns a node writes something."""


class Accesses(Protocol):
    """Notes what calls read and wrote: ``observe.access.AccessLog``."""

    def note(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> Call:
        """The record of a call that has just returned ``result``."""

    def note_made(self, name: str, result: Any) -> None:
        """A call that launched nothing has returned ``result``."""


@dataclass(slots=True)
class OpCall:
    """One call of an ATen op."""

    index: int
    name: str
    """``aten::add.Tensor``; the overload is left out when it is ``default``."""
    chain: tuple[Site, ...]
    """The Python frames outside torch, innermost first; empty on autograd's own threads."""
    innermost: Site | None
    """The innermost Python frame of all, torch's included."""
    module: tuple[str, str] | None
    annotations: tuple[str, ...]
    thread: int
    autograd_node: str | None = None
    """In backward: name of the autograd node that is running."""
    autograd_sequence: int | None = None
    """In backward: its sequence number, which leads to the forward call that made it."""
    launches: tuple[int, int] = (0, 0)
    """Half-open range of the launch log (``OpRecorder.launch_count``) that ran inside the call."""
    access: Call | None = None
    """Its reads and writes, if the recorder has an ``AccessLog`` and the call launched."""
    extra: Any = None
    """For the owner of the recorder."""

    @property
    def is_autograds(self) -> bool:
        """Whether autograd's engine ran it, and no Python code in a backward."""
        innermost = self.innermost
        of_engine = innermost is None or innermost[0].co_name == BACKWARD.name
        return self.autograd_node is not None and of_engine


def numbered(calls: Sequence[OpCall | None]) -> tuple[tuple[Call, ...], list[int | None]]:
    """``Graph.calls``, and ``Node.call`` of each node, from the op call of each node."""
    position: dict[int, int] = {}
    distinct: list[Call] = []
    of_node: list[int | None] = []
    for call in calls:
        if call is None:
            of_node.append(None)
            continue
        at = position.setdefault(id(call), len(distinct))
        if at == len(distinct):
            distinct.append(call.access or UNKNOWN)
        of_node.append(at)
    return tuple(distinct), of_node


def op_name(func: Any) -> str:
    """``aten::add.Tensor`` for an OpOverload; other callables by their own name."""
    schema = schema_of(func)
    if schema is None:
        return str(getattr(func, "__name__", func))
    overload = str(schema.overload_name)
    return f"{schema.name}.{overload}" if overload else str(schema.name)


@dataclass
class Record:
    """The calls of an iteration."""

    calls: list[OpCall] = field(default_factory=list)
    makers: dict[int, Maker | None] = field(default_factory=dict)
    """By sequence number of an autograd node. Each thread counts from 0: None if two threads gave
    the same number."""

    def maker_of(self, sequence: int | None, autograd_node: str | None) -> OpCall | None:
        """The forward call that made the autograd node with this sequence number and name."""
        maker = None if sequence is None else self.makers.get(sequence)
        if maker is None:
            return None
        if (autograd_node or "").endswith("CopySlices"):
            return None if maker.previous is None else self.calls[maker.previous]
        if maker.is_last:
            return self.calls[maker.call]
        # Autograd made the node, saved a copy of an input, and ran the op: ``clone``, ``silu_``.
        for call in self.calls[maker.call : maker.call + _SAVED_COPIES]:
            if is_node_of(autograd_node or "", call.name):
                return call
        return self.calls[maker.call]

    def forward_of(self, call: OpCall) -> OpCall | None:
        """For a call in backward: the forward call that made its autograd node."""
        return self.maker_of(call.autograd_sequence, call.autograd_node)


class Maker(NamedTuple):
    """The calls around which an autograd node with this sequence number was made."""

    call: int
    """Index of the call that was about to run, or had just run."""
    previous: int | None
    """Index of the call before it on this thread: in-place ops on views make nodes at their end."""
    is_last: bool
    """Whether it was the last number given by then; then the node is that of the call itself."""


_BACKWARD = re.compile(r"Backward[0-9]*$")
_SAVED_COPIES = 4
"""An op is among this many calls from the one at which its autograd node was made."""


def name_of_node(node: Any) -> str:
    """``AddmmBackward0``."""
    return type(node).__name__ if node.name is None else str(node.name())


def is_node_of(autograd_node: str, op: str) -> bool:
    """Whether an autograd node, by its name, is one that an op of this name makes."""
    return _plain(op.partition("::")[2].partition(".")[0]) == _forward_name(autograd_node)


@cache
def _forward_name(autograd_node: str) -> str:
    return _plain(_BACKWARD.sub("", autograd_node))


@cache
def _plain(name: str) -> str:
    """``silu`` of ``Silu`` and of ``silu_``."""
    return name.replace("_", "").lower()


Running = tuple[str, str]
"""Path and type name of the module that is running."""


def paths(roots: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    """``id(module)`` to path, for every module under the roots; the first name wins."""
    names: dict[int, str] = {}
    for prefix, root in roots.items():
        for name, module in root.named_modules(prefix=prefix):
            names.setdefault(id(module), name)
    return names


class ModuleNames:
    """Names of modules: the path from the first of ``roots`` that leads to them."""

    def __init__(self, roots: Mapping[str, torch.nn.Module]) -> None:
        self._paths = paths(roots)

    def running(self, module: torch.nn.Module, outer: Running | None) -> Running:
        """A module that runs, in ``outer`` if there is one."""
        kind = type(module).__name__
        path = self._path_of(module)
        if path is None:
            # Made inside forward, so it has no path of its own: named under its parent.
            path = f"{outer[0]}.<{kind}>".lstrip(".") if outer else f"<{kind}>"
        return path, kind

    def _path_of(self, module: torch.nn.Module) -> str | None:
        return self._paths.get(id(module))


class RootedModuleNames(ModuleNames):
    """Names modules from the outermost one that runs: ``layers.0.linear1``, ``""`` for itself.
    Keeps none of them alive: a script may drop a model, and a graph that reads it would then read
    freed memory."""

    def __init__(self) -> None:
        super().__init__({})
        self._named: dict[int, weakref.ref[torch.nn.Module]] = {}
        """By id, which another module may have after the death of the one that was named."""

    def running(self, module: torch.nn.Module, outer: Running | None) -> Running:
        if outer is None and self._path_of(module) is None:
            self._paths |= paths({"": module})
            self._named |= {id(each): weakref.ref(each) for each in module.modules()}
        return super().running(module, outer)

    def _path_of(self, module: torch.nn.Module) -> str | None:
        named = self._named.get(id(module))
        return super()._path_of(module) if named is not None and named() is module else None


@contextlib.contextmanager
def module_hooks(enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    """While entered, ``enter(module, args)`` and ``leave(module, args, result)`` are called around
    the forward of every module."""
    hooks = (
        register_module_forward_pre_hook(enter),
        # always_call: also when forward raises.
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class ModuleStack(threading.local):
    """While entered, ``current()`` names the innermost module that is running on this thread.

    It is kept by two of PyTorch's global module hooks, which add two Python calls a module.
    ``torch.utils.module_tracker`` also puts a hook on every tensor, to follow backward; that would
    change the autograd graph which is about to be captured. Here sequence numbers lead from
    backward to forward instead.
    """

    # An attribute of all threads: another one may leave than has entered.
    __slots__ = ("_hooks",)

    def __init__(self, names: ModuleNames) -> None:
        # threading.local runs __init__ once a thread, with the same arguments.
        self._names = names
        self.stack: list[Running] = []

    def current(self) -> Running | None:
        stack = self.stack
        return stack[-1] if stack else None

    def _push(self, module: torch.nn.Module, _args: Any) -> None:
        self.stack.append(self._names.running(module, self.current()))

    def _pop(self, _module: torch.nn.Module, _args: Any, _out: Any) -> None:
        stack = self.stack
        if stack:
            stack.pop()

    def __enter__(self) -> ModuleStack:
        self._hooks = contextlib.ExitStack()
        self._hooks.enter_context(module_hooks(self._push, self._pop))
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._hooks.close()
        self.stack.clear()


class RootedModuleStack(ModuleStack):
    """Names modules from the outermost one that runs.

    It also knows where the modules were called from, so that the chain of an op is looked up no
    further than to the innermost one.
    """

    def __init__(self, chains: Chains) -> None:
        super().__init__(RootedModuleNames())
        self._chains = chains
        self._running: list[tuple[FrameType, tuple[Site, ...]]] = []
        """The frame that runs a module, and the chain outside it, which stays what it is."""

    def chain(self, frame: FrameType | None) -> tuple[Site, ...]:
        """``chain_of``, one of ``chains``."""
        running = self._running
        module, outer = running[-1] if running else (None, ())
        sites, reached = sites_until(frame, module)
        if reached is None:
            outer = ()
        if not sites:
            return outer
        sites.reverse()
        return self._chains.extended(sites, outer)

    def _push(self, module: torch.nn.Module, args: Any) -> None:
        super()._push(module, args)
        frame = sys._getframe(1)
        self._running.append((frame, self.chain(frame)))

    def _pop(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        super()._pop(module, args, out)
        if self._running:
            self._running.pop()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._running.clear()


@contextlib.contextmanager
def left_alone(first_use: bool) -> Iterator[None]:
    """While entered, ``torch.compile`` compiles nothing again: code whose guards fail runs eagerly.

    A recorder's dispatch key and module hooks fail those guards. Compiling for them would record
    what Dynamo itself does, fails in some releases, and what is captured next would no longer be
    the user's compiled code. ``first_use`` holds for code that uses ``torch.compile`` for the first
    time here, too.
    """
    set_stance = getattr(torch.compiler, "set_stance", None)
    with Patches() as patches:
        patches.enter_context(control_flow.run_directly())
        # Importing torch._dynamo takes more than a second: not where nothing was compiled.
        if set_stance is not None and dynamo_is_loaded():
            patches.enter_context(set_stance("eager_on_recompile"))
        elif set_stance is not None and first_use:

            def compile_eagerly(original: Any, *args: Any, **kwargs: Any) -> Any:
                if not dynamo_is_loaded():
                    load_dynamo()
                    patches.enter_context(set_stance("eager_on_recompile"))
                return original(*args, **kwargs)

            patches.wrap(torch, "compile", compile_eagerly)
        yield


class ThreadState:
    """The op call that a thread is running, and the autograd number that it gets next."""

    __slots__ = ("call", "next_sequence", "previous", "run")

    def __init__(self) -> None:
        self.call: OpCall | None = None
        """The call that is executing."""
        self.run: Callable[..., Any] | None = None
        """Runs the op of that call."""
        self.next_sequence: int | None = None
        """The number that the next autograd node of this thread gets, when last seen."""
        self.previous: int | None = None
        """Index of the call that was last seen on this thread."""


class _Threads(threading.local):
    """One attribute rather than several: reading or writing one is what takes the time."""

    def __init__(self) -> None:
        self.running = ThreadState()


class OpRecorder:
    """Records every ATen call that runs while it is entered, on this thread and on autograd's.

    ``launch_count`` is called before and after each op; on a GPU it counts launches, so that each
    op knows which of them are its own. ``accesses`` notes what those that launched read and wrote.

    Costs a few microseconds an op. It watches a dispatch key (``torch_compat.op_key``), so the
    program runs the ops of plain eager; code of ``torch.compile`` runs eagerly, because Dynamo's
    guards see the thread's keys.
    """

    def __init__(
        self,
        roots: Mapping[str, torch.nn.Module],
        annotations: Annotations,
        launch_count: Callable[[], int] = lambda: 0,
        accesses: Accesses | None = None,
    ) -> None:
        self.record = Record()
        self.inputs: set[int] = set()
        """Keys of the storages of what is refilled before each call, where that is known."""
        self.modules = ModuleStack(ModuleNames(roots))
        self.annotations = annotations
        self.launch_count = launch_count
        self.accesses = accesses
        self._names: dict[int, tuple[str, Any]] = {}
        """By id of the op, which is kept alive: the hash of an op is computed in Python."""
        self._home = threading.get_ident()
        """The thread whose code is recorded."""
        self._threads = _Threads()
        self._looked_at = 0
        """Index of the next call whose callers are looked at."""
        self.running.next_sequence = next_sequence_number()

    @property
    def running(self) -> ThreadState:
        """The state of this thread."""
        return self._threads.running

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the op. Owners override this to keep arguments, outputs, or to refuse; they run
        the op with ``self.run``."""
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The op that is observed, run as it would be without a recorder."""
        return call_op(self.running.run, args, kwargs)

    def chain(self, caller: FrameType | None) -> tuple[Site, ...]:
        """The frames of a call outside torch."""
        return chain_of(caller)

    def waiting_chain(self) -> tuple[Site, ...]:
        """The frames outside torch of the thread whose code is recorded."""
        return chain_or_waiting(None, self._home)

    def begin(self, func: Any, caller: Any) -> OpCall:
        """Note the place of a call that is about to run."""
        known = self._names.get(id(func))
        if known is None:
            known = self._names[id(func)] = op_name(func), func
        chain = self.chain(caller)
        thread = get_ident()
        if self._home != thread:
            # Autograd's own threads run no Python: the line is that of the waiting `backward()`.
            chain = chain or self.waiting_chain()
        calls = self.record.calls
        if len(calls) >= self._looked_at:
            self._looked_at = captured_calls.look(self._home, len(calls), caller)
        modules = self.modules.stack
        call = OpCall(
            len(calls),
            known[0],
            chain,
            None if caller is None else (caller.f_code, caller.f_lasti),
            modules[-1] if modules else None,
            self.annotations.open,
            thread,
        )
        node = running_autograd_node()
        if node is not None:
            call.autograd_node = name_of_node(node)
            call.autograd_sequence = sequence_number_of(node)
        self.note_made(call)
        calls.append(call)
        return call

    def note_made(self, call: OpCall) -> None:
        """Autograd nodes were made if the next number has changed."""
        self.note_made_by(call, self._threads.running, next_sequence_number())

    def note_made_by(self, call: OpCall, running: ThreadState, following: int) -> None:
        """``note_made`` for a thread that runs ``running``; ``following`` is the next number."""
        before = running.next_sequence
        if before != following:
            running.next_sequence = following
            makers = self.record.makers
            for sequence in range(following if before is None else before, following):
                maker = Maker(call.index, running.previous, sequence == following - 1)
                makers[sequence] = None if sequence in makers else maker
        running.previous = call.index

    def observe(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        caller: FrameType | None,
    ) -> Any:
        """Record one call and run it: ``run(*args, **kwargs)``. ``caller`` is the Python frame
        that called the op; None on autograd's own threads."""
        call = self.begin(func, caller)
        running = self._threads.running
        outer = running.call, running.run
        running.call, running.run = call, run
        start = self.launch_count()
        try:
            result = self.execute(call, func, args, kwargs)
        finally:
            call.launches = (start, self.launch_count())
            running.call, running.run = outer
        self.note_made(call)
        if self.accesses is not None and call.launches[1] > start:
            call.access = self.accesses.note(call.name, func, args, kwargs, result)
        elif self.accesses is not None:
            self.accesses.note_made(call.name, result)
        return result

    def __enter__(self) -> OpRecorder:
        with contextlib.ExitStack() as entering:
            entering.enter_context(self.modules)
            self.running.next_sequence = next_sequence_number()
            # Dynamo skips code under a mode by itself; its fake tensors fail under the key.
            entering.enter_context(left_alone(first_use=op_key.is_supported()))
            entering.enter_context(op_key.watch(self.observe))
            self._entered = entering.pop_all()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._entered.__exit__(*exc)


def unprofiled(
    observer: op_key.Observer,
    func: Any,
    args: Args,
    kwargs: Kwargs,
    run: Callable[..., Any],
    caller: FrameType | None,
) -> Any:
    """Have ``observer`` run an op outside the profile of this thread: its own calls are a thousand
    for an op. Only those of a kernel in Python are the user's."""
    profile = sys.getprofile()
    if profile is None:
        return observer(func, args, kwargs, run, caller)

    def run_profiled(*args: Any, **kwargs: Any) -> Any:
        set_profile(profile)
        try:
            return call_op(run, args, kwargs)
        finally:
            sys.setprofile(None)

    sys.setprofile(None)
    try:
        may_be_users = op_key.may_have_python_kernel(op_name(func))
        return observer(func, args, kwargs, run_profiled if may_be_users else run, caller)
    finally:
        set_profile(profile)
