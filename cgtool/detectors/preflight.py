"""Mistakes that show before anything is captured: in settings, modules, and optimizers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cgtool.findings import code
from cgtool.model.capture import Frame, Frames
from cgtool.model.finding import ERROR, NOTE, Code, Finding
from cgtool.model.options import CaptureOptions
from cgtool.observe.call_sites import constructed_at
from cgtool.observe.frames import here, is_internal_file, package_part
from cgtool.observe.tensors import on_host
from cgtool.program.objects import real_module
from cgtool.program.workload import Workload, below
from cgtool.torch_compat.private import BACKWARD_HOOKS, FORWARD_HOOKS

CACHING_ALLOCATOR_DISABLED = code("caching-allocator-disabled")
CHILD_MODULE_HOOKS_CAPTURED = code("child-module-hooks-captured")
CUDNN_BENCHMARK_IN_CAPTURE = code("cudnn-benchmark-in-capture")
EXPANDABLE_SEGMENTS_SURPRISES = code("expandable-segments-surprises")
LR_FROZEN_DESPITE_CAPTURABLE = code("lr-frozen-despite-capturable")
OPTIMIZER_ADAFACTOR_KEYERROR = code("optimizer-adafactor-keyerror")
OPTIMIZER_NOT_CAPTURABLE = code("optimizer-not-capturable")
OPTIMIZER_WITHOUT_CAPTURE_GUARD = code("optimizer-without-capture-guard")
RELAXED_MODE_HIDES_BUGS = code("relaxed-mode-hides-bugs")
TRAINABLE_BUFFER = code("trainable-buffer")

STEP_OUTSIDE = (
    "call its `step()` after the replay, or use an optimizer with the option `capturable`"
)
_KEEP_ON_DEVICE = (
    "keep such state in tensors on the device, and change them in place; or call its `step()` "
    "after the replay"
)
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The allocator reads the first that is set."""


def allocator_setting() -> tuple[str, str]:
    """Name and value of the variable that configures the allocator; two empty strings for none."""
    names = (name for name in _ALLOCATOR_SETTINGS if os.environ.get(name))
    name = next(names, "")
    return name, os.environ.get(name, "")


def disabled_caching() -> Iterator[Finding]:
    """The setting under which no allocation can be captured."""
    setting = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")
    if setting:
        yield Finding(
            CACHING_ALLOCATOR_DISABLED,
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every allocation in the capture would "
            "call cudaMalloc, which CUDA does not permit there, or be outside the graph's pool",
            evidence=(f"PYTORCH_NO_CUDA_MEMORY_CACHING={setting}",),
        )


def findings_of(options: CaptureOptions) -> Iterator[Finding]:
    """Findings that need no run."""
    yield from disabled_caching()
    _, allocator = allocator_setting()
    if "expandable_segments:True" in allocator:
        yield Finding(
            EXPANDABLE_SEGMENTS_SURPRISES,
            "expandable segments are enabled: whether graph pools use them depends on the version "
            "of PyTorch",
            evidence=(allocator,),
        )
    if torch.backends.cudnn.benchmark and options.warmup_iters == 0:
        yield Finding(
            CUDNN_BENCHMARK_IN_CAPTURE,
            "torch.backends.cudnn.benchmark is enabled and there is no warm-up: cuDNN would "
            "benchmark its algorithms during the capture",
        )
    if options.capture_error_mode != "global":
        yield Finding(
            RELAXED_MODE_HIDES_BUGS,
            f"--capture-error-mode {options.capture_error_mode}: calls that are not permitted "
            "during capture run unnoticed",
        )


_FIX_OF_HARMLESS = (
    "nothing needs to change if the hook only runs ops on the device, which the graph repeats; "
    "call the rest of it after each replay"
)


def of_modules(workload: Workload, known: Sequence[Finding]) -> Iterator[Finding]:
    """Findings about modules as the first calls have left them: lazy modules, and hooks that run
    once, have removed their hooks.

    ``known``: what was found in the code that ran. A hook in which nothing was found, and which
    ran, does the same in a replay: a note.
    """
    hazardous = {(frame.file, frame.function) for each in known for frame in each.frames[:1]}
    for part in workload.parts:
        for prefix, root in part.modules.items():
            for finding in _module(prefix, real_module(root)):
                places = {(frame.file, frame.function) for frame in finding.frames}
                is_hook = finding.code == CHILD_MODULE_HOOKS_CAPTURED
                harmless = is_hook and places and not places & hazardous
                if harmless:
                    yield replace(finding, severity=NOTE, fix=_FIX_OF_HARMLESS)
                else:
                    yield finding


def _module(prefix: str, module: torch.nn.Module) -> Iterator[Finding]:
    for path, child in module.named_modules(prefix=prefix):
        yield from hooks_of(path, child)
    for name, buffer in below(prefix, module.named_buffers()):
        if buffer.requires_grad:
            yield Finding(
                TRAINABLE_BUFFER,
                f"the buffer `{name}` requires grad: "
                "`make_graphed_callables` refuses it, and it gets no gradient from the graph",
                _definition(type(module)),
                module=prefix,
            )


def hooks_of(path: str, module: torch.nn.Module) -> Iterator[Finding]:
    """The hooks of one module, which a graph leaves out."""
    for kind, names in (("forward", FORWARD_HOOKS), ("backward", BACKWARD_HOOKS)):
        for table in names:
            part = "pre-" if "pre" in table else ""
            for hook in (getattr(module, table, None) or {}).values():
                function = _function_of(hook)
                if package_part(getattr(getattr(function, "__code__", None), "co_filename", "")):
                    # PyTorch's own: of a lazy module, of `weight_norm`.
                    continue
                name = f"`{path}`" if path else "the module"
                yield Finding(
                    CHILD_MODULE_HOOKS_CAPTURED,
                    f"{name} ({type(module).__name__}) has a {kind} {part}hook, whose Python code "
                    "does not run in a replay",
                    _definition(function),
                    module=path,
                )


def _function_of(hook: Any) -> Any:
    """The function that a hook calls: that of a method, of a partial, or of an object with
    ``__call__``."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    if not inspect.isroutine(hook):
        hook = getattr(type(hook), "__call__", hook)  # noqa: B004 # the function, not whether
    return getattr(hook, "__func__", hook)


def _definition(value: Any) -> Frames:
    """Where a function or a class is defined; () if there is no source."""
    try:
        target = inspect.unwrap(value) if callable(value) else value
        _, line = inspect.getsourcelines(target)
        file = inspect.getsourcefile(target)
    except (TypeError, OSError, ValueError):
        return ()
    return (Frame(file or "", line, getattr(target, "__qualname__", "")),)


def frozen_by(optimizer: torch.optim.Optimizer) -> Code:
    """The code for Python numbers of this optimizer, which a graph freezes."""
    capturable = "capturable" in optimizer.param_groups[0]
    return LR_FROZEN_DESPITE_CAPTURABLE if capturable else OPTIMIZER_WITHOUT_CAPTURE_GUARD


@dataclass
class Stepped:
    """An optimizer that stepped."""

    optimizer: torch.optim.Optimizer
    frames: Frames
    """Where it first stepped."""
    rates: list[tuple[Any, ...]]
    """Its learning rates at each step, and after the last one."""


def _rates(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    return tuple(
        group["lr"] for group in optimizer.param_groups if isinstance(group.get("lr"), float | int)
    )


@contextlib.contextmanager
def stepping_optimizers() -> Iterator[dict[int, Stepped]]:
    """Fills the dict with the optimizers that step while entered, by identity."""
    steps: dict[int, Stepped] = {}

    def note_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        step = steps.setdefault(id(optimizer), Stepped(optimizer, here(2), []))
        step.rates.append(_rates(optimizer))

    handle = register_optimizer_step_pre_hook(note_step)
    try:
        yield steps
    finally:
        handle.remove()
    for step in steps.values():
        step.rates.append(_rates(step.optimizer))


def captured_optimizers(steps: Iterable[Stepped]) -> Iterator[Finding]:
    """Findings on a graph that contains these steps of optimizers."""
    for step in steps:
        yield from _captured_step(step)


def _tensor_of(rate: Any) -> str:
    return f"lr=torch.tensor({_shown_rate(rate)}, device=...)"


def filled_rate(optimizer: torch.optim.Optimizer, rate: Any) -> str | None:
    """The fix for a learning rate, if the optimizer reads a tensor."""
    group = optimizer.param_groups[0]
    in_place = (
        "what changes it, such as `scheduler.step()`, must do so after each replay and in place, "
        '`group["lr"].fill_(rate)`: `group["lr"] = rate` puts a number there again'
    )
    if "capturable" in group:
        return f"pass `{_tensor_of(rate)}` to the optimizer; {in_place}"
    # Its fused kernel reads a tensor, where the others read a number.
    is_fused = "fused" in group and not _host_state(optimizer)
    made = f"{type(optimizer).__name__}(..., {_tensor_of(rate)}, fused=True)"
    return f"{made}; {in_place}" if is_fused else None


def _shown_rate(rate: Any) -> Any:
    """A learning rate as a user writes it: without the rounding of its type."""
    if isinstance(rate, torch.Tensor) and on_host(rate):
        return float(f"{rate.item():.6g}")
    return float(f"{rate:.12g}") if isinstance(rate, float) else rate


def _host_state(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of the state that the optimizer keeps as numbers on the host."""
    return list(
        dict.fromkeys(
            key
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for key, value in state.items()
            if isinstance(value, int | float)
            or (isinstance(value, torch.Tensor) and value.dim() == 0 and on_host(value))
        )
    )


def _is_of_pytorch(optimizer: torch.optim.Optimizer) -> bool:
    module = sys.modules.get(type(optimizer).__module__)
    return is_internal_file(getattr(module, "__file__", None) or "")


def _stays(optimizer: torch.optim.Optimizer, counters: list[str]) -> str:
    return (
        f"`{type(optimizer).__name__}` keeps {_listed(counters)} on the host, where a replay does "
        f"not change {'them' if counters[1:] else 'it'}"
    )


def _kept_on_host(optimizer: torch.optim.Optimizer) -> str:
    """The fused kernels have the step count on the device."""
    kept = _host_state(optimizer)
    return f" and keeps {_listed(kept)} on the host" if kept else ""


def _listed(names: Sequence[str]) -> str:
    """The first two, and how many more there are."""
    shown = " and ".join(f"`{name}`" for name in names[:2])
    return f"{shown} and {len(names) - 2} more" if names[2:] else shown


def _captured_step(step: Stepped) -> Iterator[Finding]:
    optimizer, stepped_at = step.optimizer, step.frames
    group = optimizer.param_groups[0]
    name, frames = type(optimizer).__name__, constructed_at(optimizer) or stepped_at
    lr, capturable = group.get("lr"), group.get("capturable")
    counters = [] if capturable else _host_state(optimizer)
    moves = len(set(step.rates)) > 1
    if name == "Adafactor" and type(optimizer).__module__.startswith("torch.optim"):
        # PyTorch's check reads an option that this class does not have.
        yield Finding(
            OPTIMIZER_ADAFACTOR_KEYERROR,
            f"`{name}.step` raises KeyError: 'capturable' when a stream is capturing",
            stepped_at,
        )
    elif capturable is False:
        where = f" in line {frames[0].line}" if frames else ""
        yield Finding(
            OPTIMIZER_NOT_CAPTURABLE,
            f"`{name}` was constructed without `capturable=True`{_kept_on_host(optimizer)}, and "
            "its `step` refuses to be captured",
            stepped_at,
            fix=f"construct it with {name}(..., capturable=True){where}",
        )
    elif counters or not isinstance(lr, torch.Tensor):
        unused = not counters or group.get("lr_decay") == 0
        severity: str | None = None
        if moves:
            severity = ERROR
        elif "initial_lr" not in group and (capturable or unused):
            # No scheduler changes it.
            severity = NOTE
        # If the code changes it, the rate of now is not the one that the user wrote.
        rate = _shown_rate(optimizer.defaults.get("lr") if moves else group.get("initial_lr", lr))
        evidence: tuple[str, ...] = ()
        if capturable:
            reason = (
                f"the learning rate of `{name}` is a Python number ({rate}): a later change, by a "
                "scheduler or by hand, has no effect on replays"
            )
            fix = (
                f"{name}(..., {_tensor_of(rate)}), which `scheduler.step()` after each replay "
                "updates in place"
            )
        elif counters:
            reason = _stays(optimizer, counters)
            fix = STEP_OUTSIDE if _is_of_pytorch(optimizer) else _KEEP_ON_DEVICE
            if unused:
                evidence = (f"while `lr_decay` is 0, no weight depends on {_listed(counters)}",)
        else:
            reason = (
                f"`{name}` has no check for captures, and its numbers on the host are frozen"
                if lr is None
                else f"the learning rate of `{name}` is a Python number ({rate}), which is frozen: "
                "a later change, by a scheduler or by hand, has no effect on replays"
            )
            fix = STEP_OUTSIDE
        if lr is not None and not counters:
            fix = filled_rate(optimizer, rate) or fix
        yield Finding(
            frozen_by(optimizer), reason, frames, fix=fix, evidence=evidence, severity=severity
        )
