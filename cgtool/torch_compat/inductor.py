"""Private names of Inductor and Triton: graph trees, kernels, and the code that Inductor generates.
Their modules are imported by whoever uses them, so a name is looked up when they are."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from cgtool.model.ledger import COMPILE
from cgtool.torch_compat.private import LatePoint, PatchPoint, PrivateName, is_present, schema_of

_TREES = "torch._inductor.cudagraph_trees"
_OUTPUT = "torch._inductor.output_code"
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_NO_OPS = "graphs captured by hand have no ops where torch.compile is used"
_NO_LINES = "the lines of compiled functions are unknown"
_WITHOUT = {
    "torch._guards.CompileContext.current_compile_id": _NO_LINES,
    "torch._inductor.codecache.PyCodeCache.stack_frames_for_code": _NO_LINES,
    f"{_OUTPUT}.CompiledFxGraph.inductor_post_grad_graph_str": _NO_LINES,
    "torch._dynamo.eval_frame._maybe_set_eval_frame": _NO_OPS,
    "torch._dynamo.eval_frame.set_skip_guard_eval_unsafe": _NO_OPS,
}
"""The loss without each name. The names that are replaced follow below."""


def _point(module: str, path: str, without: str) -> LatePoint:
    _WITHOUT[f"{module}.{path}"] = without
    return LatePoint(module, path)


RECORD = _point(
    _TREES, "CUDAGraphTreeManager.record_function", "graphs of torch.compile have no key"
)
"""``record_function(manager, inputs, function)`` captures a graph."""
WARM_UP = _point(_TREES, "CUDAGraphTreeManager.run_eager", "the warm-up of a graph has no time")
"""``run_eager(manager, inputs, function)`` runs a function once before its capture."""
CHECK = _point(
    _TREES, "CUDAGraphNode.check_invariants", "it is unknown why a graph is captured again"
)
"""``check_invariants(node, inputs)`` says whether a graph can be replayed."""
SKIP = _point(
    "torch._inductor.cudagraph_utils",
    "log_cudagraph_skip_and_bump_counter",
    "it is unknown why nothing is captured",
)
"""Called with the reason."""
COMPILE_FX = _point("torch._inductor.compile_fx", "compile_fx", _NO_LINES)
"""Called with each graph that Dynamo traced, also where all of its code comes from a cache."""
POST_COMPILE = _point(_OUTPUT, "CompiledFxGraph.post_compile", _NO_LINES)
"""Called once for each file of generated code, whether it was compiled or comes from a cache."""
LOWERING = _point(_OUTPUT, "CompiledFxGraph.__init__", _NO_LINES)
"""Called once for each file that is compiled now; among its arguments is the graph that it was made
from."""
RUN = _point(_OUTPUT, "CompiledFxGraph.__call__", _NO_OPS)
"""Runs generated code."""
COMPILATIONS = _point(
    "torch._dynamo.callback", "CompilationCallbackHandler.install_callbacks", _NO_OPS
)
"""The context that is entered for each compilation, on the thread that compiles."""
COMPILED = _point(
    "torch._dynamo.utils",
    "CompilationMetrics.create",
    "the report does not show when torch.compile compiles",
)
"""Called with the figures of each compilation, at its end."""
_KERNEL = _point(_HEURISTICS, "CachingAutotuner.run", "Triton kernels have no op")
"""Called by generated code for each Triton kernel."""
_TRITON_KERNEL = LatePoint("triton.runtime.jit", "JITFunction.run")
"""Called by a program for each kernel of its own."""
COMPILERS = (
    LatePoint("triton", "compile"),
    LatePoint("triton.compiler", "compile"),
    LatePoint("triton.compiler.compiler", "CompiledKernel._init_handles"),
    LatePoint("triton.runtime.autotuner", "Autotuner._bench"),
    LatePoint(_HEURISTICS, "CachingAutotuner.precompile"),
    LatePoint(_HEURISTICS, "CachingAutotuner.autotune_to_one_config"),
)
"""Functions that compile, tune or load kernels."""


LOADERS = ("_init_handles",)
"""Those of them that only load."""


class CompiledFunction(NamedTuple):
    """A function that was compiled, or one kernel."""

    began_ns: int
    """By the system clock."""
    duration_ns: int
    compiler: str
    name: str
    because: str | None = None
    """Why it was compiled again."""


def compiled_function(figures: dict[str, Any]) -> CompiledFunction | None:
    """The argument of ``COMPILED``; None where nothing new can run: what Dynamo gives up."""
    if figures.get("is_runtime") or figures.get("has_guarded_code") is False:
        return None
    name = str(figures.get("co_name") or "")
    if figures.get("is_forward") is False:
        name += " backward"
    began_us, ended_us = figures["start_time_us"], figures["end_time_us"]
    duration_ns = max(ended_us - began_us, 0) * 1000
    because = figures.get("recompile_reason")
    return CompiledFunction(began_us * 1000, duration_ns, COMPILE, name.strip(), because)


def compiled_kernel(args: Sequence[Any], began_ns: int, duration_ns: int) -> CompiledFunction:
    """A Triton kernel; ``args``: of one of ``COMPILERS``."""
    name = _name(getattr(args[0], "fn", "")) if args else ""
    return CompiledFunction(began_ns, duration_ns, "Triton", name)


def private_names() -> list[PrivateName]:
    """PyTorch's names in this file, looked up now: Inductor is imported."""
    compilers = [".".join(point) for point in COMPILERS if point.module.startswith("torch.")]
    names = _WITHOUT | dict.fromkeys(compilers, "compilation in a capture has no time")
    return [
        PrivateName(path, "compiled code", without, is_present(path), gpu=False)
        for path, without in names.items()
    ]


def key_of(manager: Any, function: Any) -> str:
    """``0/1 forward``: the number of the compilation, and what the graph is for."""
    compilation = getattr(manager, "compile_id", None)
    mode = getattr(manager, "id_to_mode", {}).get(function)
    words = ("" if compilation is None else str(compilation), getattr(mode, "name", "").lower())
    return " ".join(filter(None, words))


def fits(answer: Any) -> bool:
    """Whether an answer of ``check_invariants`` says that the graph can be replayed."""
    return getattr(answer[0], "name", "SUCCESS") == "SUCCESS"


def kernel_launches() -> list[PatchPoint]:
    """The methods that generated code and a program call for each Triton kernel, as far as they are
    loaded."""
    points: list[PatchPoint] = []
    for module, path in (_KERNEL, _TRITON_KERNEL):
        owner, _, name = path.partition(".")
        kernel = getattr(sys.modules.get(module), owner, None)
        if hasattr(kernel, name):
            points.append(PatchPoint(kernel, name))
    return points


def written_arguments(kernel: Any, args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Of a call ``kernel.run(*args)``: the tensors that the Triton kernel writes, by the names of
    its parameters. Inductor names its own (``in_ptr0``, ``out_ptr0``, ``in_out_ptr0``), and knows
    which inputs a kernel changes, those of the user's kernels too."""
    changed = (*getattr(kernel, "mutated_arg_names", ()),)
    for name, value in _tensor_arguments(kernel, args):
        if name.startswith(("out_ptr", "in_out_ptr")) or name in changed:
            yield name, value


def read_arguments(kernel: Any, args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that it may read: all but those that Inductor only has it write."""
    for name, value in _tensor_arguments(kernel, args):
        if not name.startswith("out_ptr"):
            yield name, value


def _tensor_arguments(kernel: Any, args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in zip(getattr(kernel.fn, "arg_names", ()), args, strict=False):
        if isinstance(value, torch.Tensor) and value.numel():
            yield name, value


def compilation() -> Hashable:
    """The compilation in progress on this thread: ``0/1`` for the second time that a function
    is."""
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    current = getattr(context, "current_compile_id", None)
    return None if current is None else current()


class TracedNode(NamedTuple):
    """A call in a graph that Dynamo traced, or that was made from one."""

    name: str
    op: str
    """The name of the function or of the method."""
    stack: str
    """Frames in the order of a traceback: innermost last."""
    module: tuple[str, str] | None
    """Path and type of the innermost module, from the variable on that holds the outermost one:
    ``L['self'].layers.0``."""


def is_graph_module(value: Any) -> bool:
    return isinstance(value, torch.fx.GraphModule)


def traced_nodes(graph_module: Any) -> Iterator[TracedNode]:
    """The calls in a graph and in those that it nests; those of a backward have the module of the
    forward."""
    for module in graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if not node.op.startswith("call_"):
                continue
            op = node.target if isinstance(node.target, str) else _name(node.target)
            meta = node.meta
            modules = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
            path, kind = next(reversed(modules.values())) if modules else (None, None)
            owner = None if path is None else (path, _name(kind).rpartition(".")[2])
            yield TracedNode(node.name, op, meta.get("stack_trace") or "", owner)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))


class LoweredCode(NamedTuple):
    """A file of generated code."""

    key: str
    """The name of the file."""
    file: str
    code: tuple[CodeType, ...]
    """Code objects of its functions."""
    graph: str
    """The graph that it was made from, as text."""


def lowered_code(graph: Any) -> LoweredCode | None:
    """The generated code of a ``CompiledFxGraph``; None where it is not Python."""
    call = getattr(graph, "current_callable", None)
    code = getattr(call, "__code__", None)
    names = getattr(getattr(call, "__func__", call), "__globals__", None)
    if code is None or names is None:
        return None
    functions = [value.__code__ for value in names.values() if isinstance(value, FunctionType)]
    own = [each for each in functions if each.co_filename == code.co_filename]
    text = getattr(graph, "inductor_post_grad_graph_str", "")
    return LoweredCode(graph.cache_key, code.co_filename, (code, *own), text)


def mapped_frames(file: str, line: int) -> list[dict[str, Any]]:
    """Frames behind a line of generated code by Inductor's own map, innermost first; [] where it is
    empty: where Inductor partitions graphs."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    look_up = getattr(cache, "stack_frames_for_code", None)
    return [] if look_up is None else look_up(file, line) or []


@cache
def is_view(op: str) -> bool:
    """Whether an op of ATen only gives its input another shape: it launches nothing."""
    if op == "getitem":
        return True
    packet = getattr(torch.ops.aten, op.removeprefix("aten."), None)
    overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else []
    schemas = [schema_of(getattr(packet, name)) for name in overloads]
    return bool(schemas) and all(
        schema.returns
        and schema.returns[0].alias_info is not None
        and not schema.returns[0].alias_info.is_write
        for schema in schemas
    )
