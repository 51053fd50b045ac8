"""Observers of what a script calls, on its own thread and on those that it starts.

A dispatch key shows the ops, and with them the reads on the host. Patches see what no op shows:
optimizers, modules, autocast, generators, collectives, the driver, ``torch.compile`` and the
allocator; each costs some Python for each call, and none disturbs the program.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgtool.observe.compiled_code import pause_in_compiled_code
from cgtool.observe.frames import (
    call_op,
    call_user,
    caller_of_cgtool,
    exception_frames,
    without_own_frames,
)
from cgtool.observe.graphs import GraphFollower
from cgtool.observe.ops import op_name, unprofiled
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript, called_by_pytorch
from cgtool.observe.tensors import FROM_DATA, key_of, listed_tensors, tensors_in
from cgtool.torch_compat import op_key, weak
from cgtool.torch_compat.dispatch_keys import Kwargs
from cgtool.torch_compat.imports import after_import
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import (
    APPLY,
    BACKWARD,
    DYNAMO,
    SWAP,
    buffers_of,
    parameters_of,
    storage_key,
    without_our_module_hooks,
)
from cgtool.torch_compat.storages import StorageRef

_NO_WORK = ("aten::detach", "aten::alias", "aten::is_pinned", "aten::record_stream", "prim::")
"""Ops that launch nothing and allocate nothing."""
_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "isend", "irecv",
)  # fmt: skip
_FIRST_ITEMS = 8
"""Items of a list that are looked at for tensors: it may be a long one of numbers."""
_HOST_CALLBACKS = ("cuLaunchHostFunc", "cudaLaunchHostFunc", "cuStreamAddCallback")
_GRAPH_METHODS = (
    "capture_begin", "pool", "raw_cuda_graph", "raw_cuda_graph_exec", "debug_dump",
    "enable_debug_mode", "get_graph_data",
)  # fmt: skip
"""Methods of ``CUDAGraph`` whose errors alone are of interest."""
_CALLS: tuple[tuple[Any, str, type], ...] = (
    (torch.autocast, "__enter__", events.AutocastEntered),
    (torch.autocast, "__exit__", events.AutocastLeft),
    (torch.cuda, "manual_seed", events.Seeded),
    (torch.cuda, "manual_seed_all", events.Seeded),
    (torch.cuda, "set_rng_state", events.Seeded),
    (torch, "manual_seed", events.Seeded),
    (torch.distributed, "destroy_process_group", events.ProcessGroupDestroyed),
)


class OpObserver:
    """Every ATen op of the script's threads: captured ones go to the recorder of the device, eager
    ones that touch a buffer of some graph are published, and so is work that a thread of the script
    does while another one captures.

    Cost: some Python for each op, and what the recorder costs for a captured one. Does not disturb
    the program (``torch_compat.op_key``, ``observe_compile``).
    """

    def __init__(self, script: ObservedScript) -> None:
        self.script = script

    def __call__(
        self, op: Any, args: Any, kwargs: Any, run: Callable[..., Any], caller: FrameType | None
    ) -> Any:
        script, recorder = self.script, self.script.device.recorder
        thread = threading.get_ident()
        # Autograd's threads work for the one that captures, as does one that uses its stream.
        is_other = (
            thread in script.threads
            and script.capture_thread not in (None, thread)
            and not script.device.stream_is_captured()
        )
        if recorder is not None and not is_other:
            try:
                return unprofiled(recorder.observe, op, args, kwargs, run, caller)
            except Exception as error:
                if script.capture is not None:
                    call = recorder.record.calls[-1]
                    script.publish(events.OpRaised(script.capture, error, call, args, kwargs))
                raise
        if script.capture is None:
            result = call_op(run, args, kwargs)
            script.eager_op(op, args, kwargs, result)
            return result
        if not is_other:
            return call_op(run, args, kwargs)
        # Before the op: it may end the capture, and raise here too.
        self._note_work(op, args, kwargs)
        try:
            return call_op(run, args, kwargs)
        except Exception as error:
            script.thread_raised(error)
            raise

    def _note_work(self, op: Any, args: Any, kwargs: Kwargs) -> None:
        script, graph = self.script, self.script.capture
        device = kwargs.get("device")
        uses_device = any(
            script.device.place(tensor) == "device" for tensor in tensors_in((args, kwargs))
        )
        allocates = device is not None and str(device).startswith("cuda")
        if script.device.simulated and not script.device.ran_on_host((args, kwargs)):
            # Its devices are all called cpu by the time that an op runs.
            allocates = device is not None
        if graph is None or not (uses_device or allocates) or op_name(op).startswith(_NO_WORK):
            return
        graph.disturbed |= graph.mode == "global"
        script.publish(events.ThreadWorked(graph, threading.current_thread().name))

    def observe_thread(self, original: Any, thread: threading.Thread) -> None:
        """Run a thread that the script starts."""
        self.script.threads.add(threading.get_ident())
        try:
            original(thread)
        finally:
            self.script.threads.discard(threading.get_ident())

    def thread_ended(self, original: Any, failure: Any) -> None:
        """A thread ends with an exception, which Python prints."""
        self.script.thread_raised(failure.exc_value)
        kind, error, traceback, thread = failure
        if error is not None and not self.script.closed:
            self.script.publish(events.ThreadEnded(error))
            raised = f"{type(error).__name__}: {error}".partition("\n")[0]
            frames = exception_frames(error)
            self.script.failed_threads.append((getattr(thread, "name", ""), raised, frames))
        traceback = without_own_frames(traceback)
        call_user(original, threading.ExceptHookArgs((kind, error, traceback, thread)))


def observe_graphs(script: ObservedScript, patches: Patches) -> None:
    """``CUDAGraph``: all that ``GraphFollower`` follows, and what its methods raise.

    Cost: some Python for each call, and a look at the script's stack for each replay. Does not
    disturb the program: a replay launches what it would have launched.
    """
    graph_class = script.device.graph_class

    def guarded(original: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call_user(original, graph, *args, **kwargs)
        except Exception as error:
            script.publish(events.CallRaised(error, "script"))
            raise

    def capture_end(original: Any, graph: Any) -> None:
        if script.capture is None or script.capture.graph() is not graph:
            guarded(original, graph)
            return
        with _warnings_published(script):
            call_user(original, graph)

    def instantiate(original: Any, graph: Any) -> None:
        guarded(original, graph)
        if (watched := script.graph_of(graph)) is not None:
            watched.instantiated = True

    wrappers: dict[str, Callable[..., Any]] = dict.fromkeys(_GRAPH_METHODS, guarded)
    for wrapper in (capture_end, instantiate):
        wrappers[wrapper.__name__] = wrapper
    for name, wrapper in wrappers.items():
        if hasattr(graph_class, name):  # not every PyTorch has all
            patches.wrap(graph_class, name, wrapper)
    GraphFollower(graph_class, script, patches)


def observe_backward(script: ObservedScript, patches: Patches) -> None:
    """What PyTorch warns of in captured backwards, each time and not once per process.

    Cost: nothing outside captures. Warnings of a captured backward are shown after it.
    """

    def run_backward(original: Any, *args: Any, **kwargs: Any) -> Any:
        if script.capture is None:
            return call_user(original, *args, **kwargs)
        with _warnings_published(script):
            return call_user(original, *args, **kwargs)

    patches.wrap(*BACKWARD, run_backward)


@contextlib.contextmanager
def _warnings_published(script: ObservedScript) -> Iterator[None]:
    """Every warning of the block is published, then shown as it would have been."""
    always = torch.is_warn_always_enabled()
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.set_warn_always(True)
            yield
    finally:
        torch.set_warn_always(always)
        for warning in caught:
            script.publish(events.Warned(str(warning.message)))
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def observe_ops(script: ObservedScript, patches: Patches) -> None:
    """Ops of the script's threads, and what ends these threads."""
    observer = OpObserver(script)
    patches.enter_context(op_key.watch(observer))
    # Around `run`, the traceback of a thread would begin here.
    patches.wrap(threading.Thread, "_bootstrap_inner", observer.observe_thread)
    patches.wrap(threading, "excepthook", observer.thread_ended)


def observe_host_reads(script: ObservedScript, patches: Patches) -> None:
    """Calls that read tensors on the host, and dispatch no op or none that the op key sees."""

    def from_items(name: str, original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch reads the tensors among them one by one, with all keys like ours switched off.
        is_of_tensors = isinstance(data, list | tuple) and listed_tensors(data[:_FIRST_ITEMS])
        for tensor in listed_tensors(data) if is_of_tensors else ():
            if script.device.place(tensor) == "device":
                script.host_waited(f"torch.{name}", tensor)
        return call_user(original, data, *args, **kwargs)

    def read(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        script.host_read(tensor)
        return call_user(original, tensor, *args, **kwargs)

    def as_array(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        array = call_user(original, tensor, *args, **kwargs)
        script.host_read(tensor, array)
        return array

    def reduce(original: Any, tensor: torch.Tensor, protocol: Any) -> Any:
        # What pickles a tensor writes its storage next. `copy.copy` makes one on the same storage.
        is_copied = caller_of_cgtool(sys._getframe(1)) is copy.copy.__code__
        return (call_user if is_copied else read)(original, tensor, protocol)

    patches.stand_in(torch.Tensor, "tolist", read)
    patches.stand_in(torch.Tensor, "numpy", as_array)
    patches.stand_in(torch.Tensor, "__reduce_ex__", reduce)
    for name in FROM_DATA:
        patches.stand_in(torch, name, functools.partial(from_items, name))


def observe_calls(script: ObservedScript, patches: Patches) -> None:
    """``_CALLS``, each of which publishes its event first."""

    def call(event: type, original: Any, *args: Any, **kwargs: Any) -> Any:
        script.publish(event())
        return call_user(original, *args, **kwargs)

    for owner, name, event in _CALLS:
        if hasattr(owner, name):
            patches.wrap(owner, name, functools.partial(call, event))


def _state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of an optimizer, without the parameters."""
    groups = optimizer.param_groups
    settings = ({**group, "params": None} for group in groups)
    return [*tensors_in(([*optimizer.state.values()], [*settings]))]


def observe_optimizers(script: ObservedScript, patches: Patches) -> None:
    """Steps of optimizers, ``zero_grad`` and ``load_state_dict``; what ``GradScaler`` does."""

    def steps(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        script.publish(events.OptimizerSteps(optimizer))

    def zero_grad(original: Any, *args: Any, **kwargs: Any) -> Any:
        if script.capture is None:
            script.publish(events.GradientsZeroed())
        return call_user(original, *args, **kwargs)

    def load(original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = {key_of(tensor) for tensor in _state_of(optimizer)} if script.graphs else set()
        result = call_user(original, optimizer, *args, **kwargs)
        if script.graphs and script.capture is None:
            new = [tensor for tensor in _state_of(optimizer) if key_of(tensor) not in before]
            script.publish(events.OptimizerLoaded(new))
        return result

    def unscale(method: str, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = kwargs.get("optimizer", *args[:1])
        if not called_by_pytorch():  # `step` calls `unscale_`
            script.publish(events.GradientsUnscaled(scaler, optimizer, method == "step"))
        return call_user(original, scaler, *args, **kwargs)

    patches.hook(lambda: register_optimizer_step_pre_hook(steps))
    for method in ("unscale_", "step"):
        patches.wrap(torch.amp.GradScaler, method, functools.partial(unscale, method))
    patches.wrap(torch.optim.Optimizer, "load_state_dict", load)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        patches.wrap(owner, "zero_grad", zero_grad)


def observe_modules(script: ObservedScript, patches: Patches) -> None:
    """Forwards in captures, and calls that change a module's mode or exchange its tensors."""

    def runs(module: torch.nn.Module, _args: Any) -> None:
        # Dynamo would trace the observers; this is a constant to it.
        if not torch.compiler.is_compiling():
            script.publish(events.ModuleRuns(module))

    inside = False

    def change(
        method: str, original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        nonlocal inside
        if inside:  # of a parent, whose call was published
            return call_user(original, module, *args, **kwargs)
        script.publish(events.ModuleChanged(module, method == "train"))
        inside = True
        try:
            return call_user(original, module, *args, **kwargs)
        finally:
            inside = False

    def register(
        original: Any, module: torch.nn.Module, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        if script.graphs and not inside and script.capture is None:
            script.publish(events.ModuleChanged(module, False, name))
        return call_user(original, module, name, *args, **kwargs)

    def take(original: Any, module: torch.nn.Module, name: str) -> None:
        if name in parameters_of(module) or name in buffers_of(module):
            register(original, module, name)
        else:
            call_user(original, module, name)

    hooks: list[Any] = []

    def begin(_event: events.CaptureBegan) -> None:
        hooks.append(register_module_forward_pre_hook(runs))

    def end(_event: events.CaptureEnded | events.CaptureFailed | None = None) -> None:
        while hooks:
            hooks.pop().remove()

    # In captures only: torch.compile warns of global hooks.
    script.subscribe(events.CaptureBegan, begin)
    script.subscribe(events.CaptureEnded, end)
    script.subscribe(events.CaptureFailed, end)
    patches.callback(end)  # of a script that ends in a capture
    for owner, method in ((torch.nn.Module, "train"), (torch.nn.Module, "load_state_dict"), APPLY):
        patches.wrap(owner, method, functools.partial(change, method))
    for method in ("register_parameter", "register_buffer"):
        patches.wrap(torch.nn.Module, method, register)
    patches.wrap(torch.nn.Module, "__delattr__", take)


def observe_dlpack(script: ObservedScript, patches: Patches) -> None:
    """Tensors that are made of the memory of others."""

    def from_dlpack(original: Any, *args: Any, **kwargs: Any) -> Any:
        tensor = call_user(original, *args, **kwargs)
        if isinstance(tensor, torch.Tensor):
            script.buffers.add_alias(StorageRef(tensor))
        return tensor

    for owner in (torch, torch.utils.dlpack):
        patches.wrap(owner, "from_dlpack", from_dlpack)


def observe_collectives(script: ObservedScript, patches: Patches) -> None:
    """Collectives outside captures, and waits for them."""
    if not torch.distributed.is_available():
        return
    distributed: Any = torch.distributed

    def collective(original: Any, *args: Any, **kwargs: Any) -> Any:
        work = call_user(original, *args, **kwargs)
        if isinstance(work, distributed.Work) and script.capture is None:
            script.publish(events.CollectiveStarted(work))
        return work

    def wait(original: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        script.publish(events.CollectiveDone(work))
        return call_user(original, work, *args, **kwargs)

    def is_completed(original: Any, work: Any) -> Any:
        completed = call_user(original, work)
        if completed:
            script.publish(events.CollectiveDone(work))
        return completed

    for name in _COLLECTIVES:
        patches.wrap(distributed, name, collective)
    for name in ("wait", "synchronize"):
        patches.wrap(distributed.Work, name, wait)
    patches.wrap(distributed.Work, "is_completed", is_completed)


def observe_driver(script: ObservedScript, patches: Patches) -> None:
    """Driver functions that the script calls by ``ctypes`` to add a host callback in a capture."""

    def look_up(original: Any, library: Any, name: str) -> Any:
        if name in _HOST_CALLBACKS and script.capture is not None:
            script.publish(events.HostCallbackAdded())
        function = call_user(original, library, name)
        if name in _HOST_CALLBACKS:
            # CDLL keeps what it looked up; the next call must come here too.
            library.__dict__.pop(name, None)
        return function

    patches.wrap(ctypes.CDLL, "__getattr__", look_up)


def observe_compile(script: ObservedScript, patches: Patches, calls: Patches) -> None:
    """Compilations in a capture; nothing on the simulated device, where nothing is compiled.

    Does not disturb the program: while Dynamo or compiled code runs, this thread's ops are not
    observed and ``calls`` are suspended, so that guards, fake tensors and what is traced are those
    of a plain run.
    """
    if script.device.simulated:
        return

    def compiles() -> None:
        if script.capture is not None:
            script.publish(events.CompiledInCapture())

    # Dynamo keeps functions of PyTorch in tables when it is imported.
    patches.callback(after_import(DYNAMO, lambda _module: None, calls.suspended))
    pause_in_compiled_code(patches, lambda: _paused(calls), compiles)


@contextlib.contextmanager
def _paused(calls: Patches) -> Iterator[None]:
    """Neither ops nor calls are observed: Dynamo would trace the observers."""
    with op_key.paused(), calls.suspended(), without_our_module_hooks():
        yield


def observe_swaps(script: ObservedScript, patches: Patches) -> None:
    """``swap_tensors``, which refuses a tensor that has a weak reference: those of the script."""

    def swap(original: Any, first: torch.Tensor, second: torch.Tensor) -> None:
        original(first, second)
        script.publish(events.TensorsSwapped((first, second)))

    weak.hide(patches)
    patches.wrap(*SWAP, swap)


def observe_storages(script: ObservedScript, patches: Patches) -> None:
    """``UntypedStorage.resize_``, which is no op."""

    def resize(original: Any, storage: torch.UntypedStorage, *args: Any) -> Any:
        result = original(storage, *args)
        if not script.closed:
            script.publish(events.StorageResized(storage_key(storage)))
        return result

    patches.wrap(torch.UntypedStorage, "resize_", resize)


def observe_allocator(script: ObservedScript, patches: Patches) -> None:
    """The script's own ``empty_cache``."""

    def empty_cache(original: Any) -> None:
        call_user(original)
        if script.capture is None and not called_by_pytorch():
            script.publish(events.CacheEmptied())

    patches.wrap(torch.cuda, "empty_cache", empty_cache)
