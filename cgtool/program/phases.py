"""How a workload runs: every forward, then every backward in reverse.

That is the order of ``torch.cuda.make_graphed_callables``, and the same for a capture, a recorded
iteration and a dry run, on a GPU and on the simulated device. As there, backward runs from the
outputs that require grad to the inputs and parameters that do, with static incoming gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from cgtool.analysis.units import names_text
from cgtool.findings import code
from cgtool.model.failure import user_code
from cgtool.model.finding import ERROR, Finding
from cgtool.model.options import CaptureOptions, Progress
from cgtool.observe.frames import call_user
from cgtool.observe.tensors import are_gradients_taken, leaves_behind, note_gradients_taken
from cgtool.program.boundary import Explain, user_errors
from cgtool.program.workload import Named, Workload, WorkloadPart, inputs_of, tensors_in
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD, running_autograd_node

NO_DIFFERENTIABLE_PARAMS = code("no-differentiable-params")
UNUSED_INPUT = code("unused-input")


# --- one callable


def call(part: WorkloadPart) -> Any:
    """Call a part with its sample arguments."""
    return call_user(part.function, *part.args, **part.kwargs)


def flatten_outputs(outputs: Any) -> list[Named]:
    """The tensors that a callable returned, named ``output``, ``output[1]``, ``output['loss']``."""
    return [(f"output{path}", tensor) for path, tensor in tensors_in(outputs, objects=True)]


@dataclass(frozen=True)
class Backward:
    """The outputs and inputs of a backward: the arguments of ``torch.autograd.grad``."""

    outputs: tuple[Named, ...]
    inputs: tuple[Named, ...]
    incoming: tuple[torch.Tensor, ...]
    """Static gradients of ones, one per output, allocated outside the graph."""


def differentiable(part: WorkloadPart, outputs: list[Named]) -> Backward | None:
    """The outputs and inputs of backward, or None when no output requires grad.

    Raises CgtoolError when an output requires grad and no input or parameter does, so that there
    is nothing to differentiate with respect to.
    """
    needing_grad = tuple((name, tensor) for name, tensor in outputs if tensor.requires_grad)
    if not needing_grad:
        return None
    parameters: list[Named] = list(part.parameters())
    if parameters and not isinstance(part.function, torch.nn.Module):
        # A function may reach a module by name without running it.
        used = leaves_behind([tensor for _, tensor in needing_grad])
        parameters = [(name, parameter) for name, parameter in parameters if id(parameter) in used]
    inputs: dict[int, Named] = {}
    for name, tensor in inputs_of(part) + parameters:
        if tensor.requires_grad:
            inputs.setdefault(id(tensor), (name, tensor))
    if not inputs:
        raise user_code(
            f"{part.name}: {needing_grad[0][0]} requires grad, but no input and no parameter that "
            "cgtool can reach does",
            why="backward is captured from the outputs to the inputs and parameters that require "
            "grad, and the tensors behind this output belong to neither",
            findings=(
                Finding(
                    NO_DIFFERENTIABLE_PARAMS,
                    f"`{part.name}` returns {needing_grad[0][0]}, which requires grad through a "
                    "tensor that is neither an argument nor held in a variable or attribute",
                    severity=ERROR,
                ),
            ),
            fix="pass the tensors as arguments or return the module that owns them from the "
            "factory; or capture the forward alone with --no-backward",
            phase="capture backward",
        )
    incoming = tuple(torch.ones_like(tensor) for _, tensor in needing_grad)
    return Backward(needing_grad, tuple(inputs.values()), incoming)


def grads(backward: Backward, allow_unused: bool) -> tuple[torch.Tensor | None, ...]:
    """Run a backward, as ``make_graphed_callables`` calls it.

    Raises CgtoolError that names the inputs that no output depends on, unless ``allow_unused``.
    """
    try:
        return call_user(
            torch.autograd.grad,
            outputs=tuple(tensor for _, tensor in backward.outputs),
            inputs=tuple(tensor for _, tensor in backward.inputs),
            grad_outputs=backward.incoming,
            only_inputs=True,
            allow_unused=allow_unused,
        )
    except RuntimeError as error:
        if "not have been used in the graph" not in str(error):
            raise
        used = leaves_behind([tensor for _, tensor in backward.outputs])
        unused = [name for name, tensor in backward.inputs if id(tensor) not in used]
        shown = names_text(unused, 5) or "some of the inputs"
        raise user_code(
            f"the outputs give no gradient to {shown}",
            why="backward is captured for every input and parameter that requires grad; these are "
            "unused, or used only by ops without a gradient, such as argmax",
            findings=(Finding(UNUSED_INPUT, f"the outputs give no gradient to {shown}"),),
            fix="--allow-unused-input leaves them without one; or set requires_grad_(False) on "
            "them, or use them",
            phase="backward",
            uncertain=True,
        ) from error


# --- the phases of a workload


@dataclass
class Phase:
    """A forward, a backward or a step of one callable."""

    name: str
    """``forward``, or ``backward 1`` if there are several callables."""
    kind: str
    """``forward``, ``backward`` or ``step``."""
    index: int
    """Index into ``Workload.parts``."""
    part: WorkloadPart
    work: Callable[[], Any]
    result: Any = None
    """The result of ``work``; set by whoever runs it."""


@dataclass
class WorkloadRun:
    """A workload that runs in phases, and the tensors of each phase, by index of the callable."""

    workload: Workload
    options: CaptureOptions
    outputs: dict[int, list[Named]] = field(default_factory=dict)
    backwards: dict[int, Backward] = field(default_factory=dict)
    gradients: dict[int, tuple[torch.Tensor | None, ...]] = field(default_factory=dict)
    without_gradient: set[int] = field(default_factory=set)
    """``id`` of the inputs and parameters that an iteration gave none, where that is permitted."""
    _took_gradients: bool = False
    """Whether a callable was seen to."""

    @property
    def wants_backward(self) -> bool:
        return self.options.backward and self.workload.kind != "step"

    @property
    def first_kind(self) -> str:
        """The kind of the phases that call the callables."""
        return "step" if self.workload.kind == "step" else "forward"

    def phases(self) -> Iterator[Phase]:
        """Every forward in order, then every backward in reverse: each is run by the loop over
        them, before the next one.

        Raises CgtoolError when a backward has nothing to differentiate with respect to.
        """
        parts = self.workload.parts
        first = self.first_kind

        def phase(kind: str, index: int, work: Callable[[], Any]) -> Phase:
            name = kind if len(parts) == 1 else f"{kind} {index}"
            return Phase(name, kind, index, parts[index], work)

        for index, part in enumerate(parts):
            forward = phase(first, index, partial(self._watching_backward, call, part))
            yield forward
            self.outputs[index] = self.outputs_of(part, forward.result)
        if not self.wants_backward:
            return
        for index, part in reversed(list(enumerate(parts))):
            gradient = differentiable(part, self.outputs[index])
            if gradient is not None:
                self.backwards[index] = gradient
                work = partial(grads, gradient, self.options.allow_unused_input)
                backward = phase("backward", index, work)
                yield backward
                self.gradients[index] = backward.result

    def outputs_of(self, part: WorkloadPart, result: Any) -> list[Named]:
        """The tensors that a callable returned. If it has taken their gradients, so that no
        backward from them can run, the workload becomes a step."""
        outputs = flatten_outputs(result)
        for name, tensor in outputs if self._took_gradients else ():
            if tensor.requires_grad and are_gradients_taken(tensor):
                self.workload.becomes_step(part.name, f"takes the gradients of {name}")
        return outputs

    def iterate(self, part: WorkloadPart) -> None:
        """One eager iteration of a callable, forward and backward; its tensors are not kept."""
        outputs = self.outputs_of(part, call(part))
        if self.wants_backward:
            backward = differentiable(part, outputs)
            if backward is not None:
                results = grads(backward, self.options.allow_unused_input)
                self.without_gradient.update(
                    id(tensor)
                    for (_, tensor), gradient in zip(backward.inputs, results, strict=True)
                    if gradient is None
                )

    def run_eagerly(
        self,
        iterations: int,
        progress: Progress,
        explain: Explain,
        last: Callable[[WorkloadPart], object] | None = None,
    ) -> None:
        """Run ``iterations`` eager iterations of each callable; ``last`` replaces the last one.

        Raises CgtoolError for what the user's code raises.
        """
        for part in self.workload.parts:
            for iteration in range(iterations):
                progress(f"warm-up {iteration + 1}/{iterations} of {part.name}")
                is_last = last is not None and iteration == iterations - 1
                run = last if last is not None and is_last else self.iterate
                with user_errors(part, "warm-up", explain):
                    if iteration == 0:
                        self._watching_backward(run, part)
                    else:
                        run(part)

    def _watching_backward(self, run: Callable[[WorkloadPart], Any], part: WorkloadPart) -> Any:
        """Run a callable; if it calls ``backward()``, the workload becomes a step: its graph
        contains the backward already, and there is nothing left to differentiate. Gradients that it
        takes in another way are noted for ``outputs_of``."""

        def run_backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            # Reentrant checkpointing is inside a backward.
            if running_autograd_node() is None:
                outputs, _, keep_graph, _, inputs, *_ = args
                if kwargs.get("accumulate_grad"):
                    self.workload.becomes_step(part.name, "calls backward()")
                else:
                    note_gradients_taken(outputs, inputs, keep_graph)
                    self._took_gradients = True
            return call_user(original, *args, **kwargs)

        with Patches() as patches:
            patches.wrap(*BACKWARD, run_backward)
            return run(part)


def roots_of(workload: Workload) -> dict[str, torch.nn.Module]:
    """Root modules by path prefix, which begins with the callable's name if there are several."""
    if len(workload.parts) == 1:
        return dict(workload.parts[0].modules)
    roots: dict[str, torch.nn.Module] = {}
    for part in workload.parts:
        for prefix, module in part.modules.items():
            roots[f"{part.name}.{prefix}".rstrip(".")] = module
    return roots


WARMUP_ITERS = 3
DDP_WARMUP_ITERS = 11
"""DistributedDataParallel rebuilds its buckets and settles in its first ten iterations
(documentation of ``torch.cuda.make_graphed_callables``)."""


def warmup_iters(workload: Workload, options: CaptureOptions) -> tuple[int, str | None]:
    """The number of warm-up iterations, and a note if it is not the default."""
    if options.warmup_iters is not None:
        return options.warmup_iters, None
    is_ddp = any(
        isinstance(module, torch.nn.parallel.DistributedDataParallel)
        for part in workload.parts
        for root in part.modules.values()
        for module in root.modules()
    )
    if is_ddp:
        return DDP_WARMUP_ITERS, (
            f"{DDP_WARMUP_ITERS} warm-up iterations, because the workload runs "
            "DistributedDataParallel"
        )
    return WARMUP_ITERS, None
