"""Feature tests: each asks whether the thing is there, none compares versions.

``python -m cgtool.devices.cuda.capabilities`` prints them as JSON: ``cgtool doctor`` runs that in a
process of its own, because the tests import torch and open the GPU.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from cgtool.model.finding import Capability

Test = Callable[[Any], Capability]


def _torch(torch: Any) -> Capability:
    return Capability("torch", "available", f"{torch.__version__}, CUDA {torch.version.cuda}")


def _gpu(torch: Any) -> Capability:
    if not torch.cuda.is_available():
        why = (
            "PyTorch is built without CUDA"
            if torch.version.cuda is None
            else "PyTorch sees no usable GPU"
        )
        return Capability(
            "GPU",
            "degraded",
            f"{why}: capture, dump and pools run on the simulated device",
            "a machine with an NVIDIA GPU and PyTorch built with CUDA",
        )
    properties = torch.cuda.get_device_properties(0)
    return Capability(
        "GPU",
        "available",
        f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{properties.total_memory >> 30} GiB",
    )


def keeps_graphs(torch: Any) -> bool:
    """Whether a captured graph leaves a template that nodes can be read from."""
    return hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph")


def _keep_graph(torch: Any) -> Capability:
    if keeps_graphs(torch):
        return Capability("captured template", "available", "CUDAGraph.raw_cuda_graph", gpu=True)
    return Capability(
        "captured template",
        "absent",
        "no nodes can be read",
        "torch 2.8 or newer",
        gpu=True,
    )


def _exec_handle(torch: Any) -> Capability:
    if hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        return Capability("executable handle", "available", "CUDAGraph.raw_cuda_graph_exec")
    return Capability(
        "executable handle", "degraded", "no upload time is shown", "torch 2.9 or newer", gpu=True
    )


def _bindings(_torch: Any) -> Capability:
    try:
        importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        return Capability(
            "cuda-bindings", "absent", str(error), "pip install cuda-bindings", gpu=True
        )
    from cgtool.devices.cuda.device import version_of

    return Capability("cuda-bindings", "available", version_of("cuda-bindings") or "", gpu=True)


def _node_callbacks(torch: Any) -> Capability:
    name = "node callbacks (CUPTI)"
    if not torch.cuda.is_available():
        return Capability(name, "absent", "asked only where there is a GPU", gpu=True)
    from cgtool.devices.cuda.cupti import library_path, subscribable

    torch.cuda.init()
    why = subscribable()
    if why is None:
        return Capability(name, "available", f"{library_path()}", gpu=True)
    return Capability(
        name,
        "degraded",
        f"{why}; ops are recorded during the capture instead, which slows it down",
        "run without another profiler attached",
        gpu=True,
    )


def _node_times(_torch: Any) -> Capability:
    name = "node times (cupti-python)"
    try:
        importlib.import_module("cupti.cupti")
    except ImportError:
        return Capability(
            name,
            "degraded",
            "times of nodes come from PyTorch's profiler, where the order of its records tells",
            "pip install 'cgtool[cupti]'",
            gpu=True,
        )
    from cgtool.devices.cuda.device import version_of

    return Capability(name, "available", version_of("cupti-python") or "", gpu=True)


def _parameter_layout(_torch: Any) -> Capability:
    from cgtool.devices.cuda.driver import cu

    if hasattr(cu, "cuFuncGetParamInfo"):
        return Capability("kernel arguments", "available", "cuFuncGetParamInfo", gpu=True)
    return Capability(
        "kernel arguments",
        "degraded",
        "pool blocks of kernels stay unknown",
        "cuda-bindings 12.4 or newer",
        gpu=True,
    )


def _liveness(torch: Any) -> Capability:
    if _parameter_layout(torch).state == "available":
        how = "from the addresses that captured kernels, copies and fills hold"
        return Capability("input liveness", "available", how, gpu=True)
    return Capability(
        "input liveness",
        "absent",
        "the arguments of kernels cannot be read",
        "cuda-bindings 12.4 or newer",
        gpu=True,
    )


def _op_recorder(_torch: Any) -> Capability:
    from cgtool.torch_compat.op_key import is_supported

    if is_supported():
        return Capability("op recorder", "available", "a dispatch key above autograd")
    return Capability(
        "op recorder",
        "degraded",
        "a TorchDispatchMode, under which torch.compile runs eagerly",
        "a PyTorch with an unused autocast key",
    )


def _annotations(torch: Any) -> Capability:
    if "enable_annotations" in inspect.signature(torch.cuda.graph).parameters:
        return Capability(
            "annotations", "available", "record_function, NVTX and PyTorch's mark_kernels"
        )
    return Capability(
        "annotations",
        "available",
        "record_function and NVTX (torch has no mark_kernels before 2.12)",
    )


def _clock(_torch: Any) -> Capability:
    try:
        importlib.import_module("pynvml")
    except ImportError:
        return Capability(
            "clock watch",
            "degraded",
            "bench cannot say whether the GPU changed its clock",
            "pip install 'cgtool[cupti]'",
            gpu=True,
        )
    return Capability("clock watch", "available", "NVML", gpu=True)


TESTS: tuple[Test, ...] = (
    _torch,
    _gpu,
    _bindings,
    _keep_graph,
    _exec_handle,
    _node_callbacks,
    _node_times,
    _parameter_layout,
    _op_recorder,
    _annotations,
    _liveness,
    _clock,
)


def _private_names(torch: Any) -> list[Capability]:
    """One capability for each part of cgtool that needs private names of PyTorch."""
    from cgtool.torch_compat.private import PRIVATE_NAMES

    names = [name for name in PRIVATE_NAMES if torch.version.cuda is not None or not name.gpu]
    found = []
    for part in dict.fromkeys(name.part for name in names):
        needed = [name for name in names if name.part == part]
        missing = [name for name in needed if not name.present]
        label = f"PyTorch internals: {part}"
        if missing:
            how = "; ".join(f"no {name.path}: {name.without}" for name in missing)
            found.append(Capability(label, "degraded", how, "a PyTorch that cgtool was tested on"))
        else:
            names_found = f"{len(needed)} private name{'s' * (len(needed) > 1)}"
            found.append(Capability(label, "available", names_found))
    return found


def probe() -> list[Capability]:
    """Run every test; one that fails in a way of its own is absent, with the reason."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return [Capability("torch", "absent", str(error), "pip install torch")]
    found = []
    for test in TESTS:
        try:
            found.append(test(torch))
        except Exception as error:
            name = test.__name__.strip("_").replace("_", " ")
            found.append(Capability(name, "absent", f"{type(error).__name__}: {error}"))
    return found + _private_names(torch)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(probe()).decode() + "\n")
