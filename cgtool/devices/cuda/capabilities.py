"""Feature tests: each tests for the feature itself, none compares versions.

``python -m cgtool.devices.cuda.capabilities`` prints them as JSON: ``cgtool doctor`` runs that in a
process of its own, because the tests import torch and open the GPU.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import msgspec

from cgtool.model.finding import Capability


class Missing(Exception):
    def __init__(self, how: str, remedy: str | None = None, state: str = "degraded") -> None:
        """The state, as in ``Capability``."""
        super().__init__(how)
        self.how, self.remedy, self.state = how, remedy, state


# Each test receives the module torch, and returns what is available or raises Missing.


def _torch(torch: Any) -> str:
    return f"{torch.__version__}, CUDA {torch.version.cuda}"


def _gpu(torch: Any) -> str:
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        why = "PyTorch sees no usable GPU" if built else "PyTorch is built without CUDA"
        raise Missing(
            f"{why}: the simulated device stands in for one",
            "a machine with an NVIDIA GPU and PyTorch built with CUDA",
        )
    properties = torch.cuda.get_device_properties(0)
    return (
        f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{properties.total_memory >> 30} GiB"
    )


def _bindings(_torch: Any) -> str:
    try:
        importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise Missing(str(error), "pip install cuda-bindings", "absent") from error
    return version_of("cuda-bindings") or ""


def _exec_handle(torch: Any) -> str:
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        raise Missing("no upload time is shown", "torch 2.9 or newer")
    return "CUDAGraph.raw_cuda_graph_exec"


def _node_callbacks(torch: Any) -> str:
    if not torch.cuda.is_available():
        raise Missing("tested only on a GPU", state="absent")
    from cgtool.devices.cuda import cupti

    torch.cuda.init()
    try:
        with cupti.watch_nodes(lambda *_: None):
            return str(cupti.library_path())
    except cupti.CuptiUnavailable as error:
        raise Missing(
            f"{error}; ops are recorded during the capture instead, which slows it down",
            "run without another profiler attached",
        ) from error


def _node_times(_torch: Any) -> str:
    try:
        importlib.import_module("cupti.cupti")
    except ImportError as error:
        raise Missing(
            "node times come from PyTorch's profiler, if its records can be matched by order",
            "pip install 'cgtool[cupti]'",
        ) from error
    return version_of("cupti-python") or ""


def _parameter_layout(_torch: Any) -> str:
    from cgtool.devices.cuda.driver import cu

    if not hasattr(cu, "cuFuncGetParamInfo"):
        raise Missing(
            "the pool blocks that a kernel uses are unknown", "cuda-bindings 12.4 or newer"
        )
    return "cuFuncGetParamInfo"


def _op_recorder(_torch: Any) -> str:
    from cgtool.torch_compat.op_key import is_supported

    if not is_supported():
        raise Missing(
            "a TorchDispatchMode, under which some ops are replaced by others",
            "a PyTorch with an unused dispatch key",
        )
    return "a dispatch key below autograd"


def _op_watch(_torch: Any) -> str:
    from cgtool.torch_compat import op_key, op_watch

    if not op_key.can_watch_natively():
        raise Missing(
            "cgtool run watches the ops of a capture in Python, which takes longer",
            "a PyTorch with an unused dispatch key",
        )
    if op_watch.load() is None:
        raise Missing(
            "cgtool run watches the ops of a capture in Python, which takes longer",
            "cgtool doctor --build, or the first cgtool run (needs a C++ compiler)",
        )
    return f"compiled: {op_watch.library()}"


def _annotations(torch: Any) -> str:
    if "enable_annotations" in inspect.signature(torch.cuda.graph).parameters:
        return "record_function, NVTX and PyTorch's mark_kernels"
    return "record_function and NVTX (torch has no mark_kernels before 2.12)"


def _liveness(torch: Any) -> str:
    try:
        _parameter_layout(torch)
    except Missing as error:
        why = "kernel arguments cannot be read"
        raise Missing(why, error.remedy, "absent") from error
    return "from the addresses in captured kernels, memcpys and memsets"


def _clock(_torch: Any) -> str:
    try:
        importlib.import_module("pynvml")
    except ImportError as error:
        raise Missing(
            "bench cannot check whether the GPU changed its clock", "pip install 'cgtool[cupti]'"
        ) from error
    return "NVML"


TESTS: tuple[tuple[str, Callable[[Any], str], bool], ...] = (
    ("torch", _torch, False),
    ("GPU", _gpu, False),
    ("cuda-bindings", _bindings, True),
    ("executable handle", _exec_handle, True),
    ("node callbacks (CUPTI)", _node_callbacks, True),
    ("node times (cupti-python)", _node_times, True),
    ("kernel arguments", _parameter_layout, True),
    ("op recorder", _op_recorder, False),
    ("op recorder in C++", _op_watch, False),
    ("annotations", _annotations, False),
    ("input liveness", _liveness, True),
    ("clock watch", _clock, True),
)
"""The feature, its test, and whether it matters only with a GPU."""


def version_of(package: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def probe() -> list[Capability]:
    """Run every test; after an unexpected exception a feature is absent, with the reason."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return [Capability("torch", "absent", str(error), "pip install torch")]
    capabilities = []
    for name, test, gpu in TESTS:
        try:
            capability = Capability(name, "available", test(torch), gpu=gpu)
        except Missing as missing:
            capability = Capability(name, missing.state, missing.how, missing.remedy, gpu)
        except Exception as error:
            capability = Capability(name, "absent", f"{type(error).__name__}: {error}")
        capabilities.append(capability)
    return capabilities + _private_names(torch)


def _private_names(torch: Any) -> list[Capability]:
    """One capability for each part of cgtool that lacks private names of PyTorch; one in all if no
    part does."""
    from cgtool.torch_compat.inductor import private_names
    from cgtool.torch_compat.private import PRIVATE_NAMES

    declared = [*PRIVATE_NAMES, *private_names()]
    names = [name for name in declared if torch.version.cuda is not None or not name.gpu]
    missing: dict[str, list[str]] = {}
    for name in names:
        if not name.present:
            missing.setdefault(name.part, []).append(f"no {name.path}: {name.without}")
    if not missing:
        return [Capability("PyTorch internals", "available", f"{len(names)} private names")]
    remedy = "a PyTorch version that cgtool was tested with"
    return [
        Capability(f"PyTorch internals: {part}", "degraded", "; ".join(lacks), remedy)
        for part, lacks in missing.items()
    ]


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(probe()).decode() + "\n")
