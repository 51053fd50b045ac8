"""Observers of calls that no op shows: optimizers, modules, autocast, generators, collectives, the
driver, ``torch.compile`` and the allocator.

Each costs some Python for each call that it observes, and none of them disturbs the program except
``observe_compile``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgtool.observe.frames import call_user
from cgtool.observe.ops import left_alone
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript, called_by_pytorch
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import APPLY, load_dynamo

_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "isend", "irecv",
)  # fmt: skip
_HOST_CALLBACKS = ("cuLaunchHostFunc", "cudaLaunchHostFunc", "cuStreamAddCallback")


def _publish_before(
    script: ObservedScript, patches: Patches, owner: Any, name: str, event: Callable[[], object]
) -> None:
    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        script.publish(event())
        return call_user(original, *args, **kwargs)

    patches.wrap(owner, name, call)


def observe_optimizers(script: ObservedScript, patches: Patches) -> None:
    """Steps of optimizers, and ``zero_grad``."""

    def steps(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        script.publish(events.OptimizerSteps(optimizer))

    def zero_grad(original: Any, *args: Any, **kwargs: Any) -> Any:
        if script.capture is None:
            script.publish(events.GradientsZeroed(script.place()))
        return call_user(original, *args, **kwargs)

    patches.callback(register_optimizer_step_pre_hook(steps).remove)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        patches.wrap(owner, "zero_grad", zero_grad)


def observe_modules(script: ObservedScript, patches: Patches) -> None:
    """Forwards in captures, and calls that change a module's mode or exchange its tensors."""

    def runs(module: torch.nn.Module, _args: Any) -> None:
        if script.capture is not None:
            script.publish(events.ModuleRuns(module))

    patches.callback(register_module_forward_pre_hook(runs).remove)
    for point in ((torch.nn.Module, "train"), (torch.nn.Module, "load_state_dict"), APPLY):
        _observe_module_method(script, patches, *point)


def _observe_module_method(
    script: ObservedScript, patches: Patches, owner: Any, method: str
) -> None:
    inside = False

    def call(original: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:  # of a parent, whose call was published
            return call_user(original, module, *args, **kwargs)
        script.publish(events.ModuleChanged(module, method == "train", script.place()))
        inside = True
        try:
            return call_user(original, module, *args, **kwargs)
        finally:
            inside = False

    patches.wrap(owner, method, call)


def observe_autocast(script: ObservedScript, patches: Patches) -> None:
    """``torch.autocast`` as it is entered and left."""
    enter = functools.partial(_publish_before, script, patches, torch.autocast)
    enter("__enter__", lambda: events.AutocastEntered(script.place()))
    enter("__exit__", events.AutocastLeft)


def observe_seeds(script: ObservedScript, patches: Patches) -> None:
    """Seeds of the default generators."""
    for owner, name in (
        (torch.cuda, "manual_seed"),
        (torch.cuda, "manual_seed_all"),
        (torch, "manual_seed"),
        (torch.cuda, "set_rng_state"),
    ):
        _publish_before(script, patches, owner, name, events.Seeded)


def observe_collectives(script: ObservedScript, patches: Patches) -> None:
    """Collectives outside captures, waits for them, and the end of the process group."""
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
    _publish_before(
        script, patches, distributed, "destroy_process_group", events.ProcessGroupDestroyed
    )


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


def observe_compile(script: ObservedScript, patches: Patches) -> None:
    """First calls in a capture of functions of ``torch.compile``; nothing on the simulated device.

    Disturbs: code that is compiled while the script runs stays eager, because under a dispatch
    mode it would be compiled to other kernels.
    """
    if script.device.simulated:
        return

    def compile_(original: Any, model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile_(original, function, **options)
        load_dynamo()
        patches.enter_context(left_alone())
        compiled = call_user(original, model, **options)
        return compiled if isinstance(model, torch.nn.Module) else first_call(compiled)

    def first_call(function: Callable[..., Any]) -> Callable[..., Any]:
        warm = False

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal warm
            if not warm and script.capture is not None:
                script.publish(events.CompiledInCapture())
            warm = True
            return call_user(function, *args, **kwargs)

        return call

    patches.wrap(torch, "compile", compile_)


def observe_allocator(script: ObservedScript, patches: Patches) -> None:
    """``mem_get_info`` outside captures, and the script's own ``empty_cache``."""

    def mem_get_info(original: Any, *args: Any, **kwargs: Any) -> Any:
        free_and_total = call_user(original, *args, **kwargs)
        if script.capture is None:
            allocated = int(torch.cuda.memory_allocated())
            free = int(free_and_total[0])
            script.publish(events.MemoryQueried(free, allocated, script.place()))
        return free_and_total

    def empty_cache(original: Any) -> None:
        call_user(original)
        if script.capture is None and not called_by_pytorch():
            script.publish(events.CacheEmptied())

    patches.wrap(torch.cuda, "mem_get_info", mem_get_info)
    patches.wrap(torch.cuda, "empty_cache", empty_cache)
