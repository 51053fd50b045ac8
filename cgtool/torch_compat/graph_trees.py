"""Private names of Inductor's graph trees. Their modules are imported by ``torch.compile`` alone,
so a name is looked up when they are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

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
