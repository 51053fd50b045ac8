"""Findings before anything runs: settings, buffers and hooks of modules."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any

import torch

from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions
from cgtool.program.callables import real_module
from cgtool.program.workload import Part, Workload
from cgtool.torch_compat.private import BACKWARD_HOOKS, FORWARD_HOOKS

CACHING_ALLOCATOR_DISABLED = code("caching-allocator-disabled")
CHILD_MODULE_HOOKS_CAPTURED = code("child-module-hooks-captured")
CUDNN_BENCHMARK_IN_CAPTURE = code("cudnn-benchmark-in-capture")
EXPANDABLE_SEGMENTS_SURPRISES = code("expandable-segments-surprises")
RELAXED_MODE_HIDES_BUGS = code("relaxed-mode-hides-bugs")
TRAINABLE_BUFFER = code("trainable-buffer")


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


def findings_of(workload: Workload, options: CaptureOptions) -> Iterator[Finding]:
    """Findings that need no run."""
    yield from _settings(options)
    for part in workload.parts:
        yield from _modules(part)


def _settings(options: CaptureOptions) -> Iterator[Finding]:
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


def _definition(value: Any) -> tuple[Frame, ...]:
    """Where a function or a class is defined; () where there is no source."""
    try:
        target = inspect.unwrap(value) if callable(value) else value
        _, line = inspect.getsourcelines(target)
        file = inspect.getsourcefile(target)
    except (TypeError, OSError, ValueError):
        return ()
    return (Frame(file or "", line, getattr(target, "__qualname__", "")),)


def _modules(workload_part: Part) -> Iterator[Finding]:
    for prefix, root in workload_part.modules.items():
        module = real_module(root)
        for name, child in module.named_modules():
            path = ".".join(part for part in (prefix, name) if part)
            yield from _hooks(path, child)
        for name, buffer in module.named_buffers():
            if buffer.requires_grad:
                path = ".".join(part for part in (prefix, name) if part)
                yield Finding(
                    TRAINABLE_BUFFER,
                    f"the buffer `{path}` requires grad: `make_graphed_callables` refuses it, and "
                    "it gets no gradient from the graph",
                    _definition(type(module)),
                    module=prefix,
                )


def _hooks(path: str, module: torch.nn.Module) -> Iterator[Finding]:
    for kind, names in (("forward", FORWARD_HOOKS), ("backward", BACKWARD_HOOKS)):
        for table in names:
            for hook in (getattr(module, table, None) or {}).values():
                yield Finding(
                    CHILD_MODULE_HOOKS_CAPTURED,
                    f"`{path or 'the module'}` ({type(module).__name__}) has a {kind} hook, whose "
                    "Python code does not run in a replay",
                    _definition(hook),
                    module=path,
                )
