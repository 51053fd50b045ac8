"""Private names of Inductor: its graph trees, its kernels, and the code that it generates. Their
modules are imported by ``torch.compile`` alone, so a name is looked up when they are."""

from __future__ import annotations

import linecache
import re
import sys
from types import ModuleType
from typing import Any

from cgtool.model.capture import Frame
from cgtool.torch_compat.private import PatchPoint

TREES = "torch._inductor.cudagraph_trees"
SKIPS = "torch._inductor.cudagraph_utils"


def skip_point(module: ModuleType) -> PatchPoint | None:
    """The function of ``SKIPS`` that is called with the reason why nothing is captured."""
    name = "log_cudagraph_skip_and_bump_counter"
    return PatchPoint(module, name) if hasattr(module, name) else None


def points(module: ModuleType) -> tuple[PatchPoint, PatchPoint] | None:
    """Methods of ``TREES``: ``record_function(manager, inputs, function)`` captures a graph, and
    ``check_invariants(node, inputs)`` says whether one can be replayed. None without both."""
    manager = getattr(module, "CUDAGraphTreeManager", None)
    node = getattr(module, "CUDAGraphNode", None)
    if not (hasattr(manager, "record_function") and hasattr(node, "check_invariants")):
        return None
    return PatchPoint(manager, "record_function"), PatchPoint(node, "check_invariants")


def key_of(manager: Any, function: Any) -> str:
    """``0/1 forward``: the number of the compilation, and what the graph is for."""
    compilation = getattr(manager, "compile_id", None)
    mode = getattr(manager, "id_to_mode", {}).get(function)
    words = ("" if compilation is None else str(compilation), getattr(mode, "name", "").lower())
    return " ".join(filter(None, words))


def fits(answer: Any) -> bool:
    """Whether an answer of ``check_invariants`` says that the graph can be replayed."""
    return getattr(answer[0], "name", "SUCCESS") == "SUCCESS"


def kernel_launch() -> PatchPoint | None:
    """The method that generated code calls for each Triton kernel; None where none is loaded."""
    module = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    kernel = getattr(module, "CachingAutotuner", None)
    return PatchPoint(kernel, "run") if hasattr(kernel, "run") else None


def source_frames(file: str, line: int) -> tuple[Frame, ...]:
    """The user's frames that a line of generated code comes from, innermost first, PyTorch's
    among them; () where Inductor does not know."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    look_up = getattr(cache, "stack_frames_for_code", None)
    frames = None if look_up is None else look_up(file, line)
    return tuple(Frame(each["filename"], each["line"], each["name"]) for each in frames or ())


_ORIGINAL_OPS = re.compile(r"Original ATen: \[([^\]]*)\]")
_LAUNCHES = re.compile(r"\.run\(|extern_kernels\.|^\s*(?:async def|def|class) ")


def source_ops(file: str, line: int) -> tuple[str, ...]:
    """The ops that the kernel launched in a line of generated code was made from, by the comment
    above it: ``("aten.add", "aten.gelu")``."""
    for number in range(line - 1, 0, -1):
        text = linecache.getline(file, number)
        found = _ORIGINAL_OPS.search(text)
        if found is not None:
            return tuple(filter(None, found[1].split(", ")))
        if _LAUNCHES.search(text):
            return ()
    return ()
