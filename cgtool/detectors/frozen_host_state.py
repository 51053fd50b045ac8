"""Host state that a graph freezes: what running the code again has shown, as findings.

A graph repeats the ops of the captured iteration, with its numbers and addresses. So an op, a
number, or the address of a tensor from outside that is another one in a later iteration is wrong in
every replay but the first. ``cgtool.recapture`` runs the code again and says which host state makes
the difference; here are the codes and sentences for that. Needs no GPU.
"""

from __future__ import annotations

import linecache
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

from msgspec.structs import replace

from cgtool.detectors import one_iteration
from cgtool.detectors.generator_states import seeded
from cgtool.detectors.reporting import at_call
from cgtool.findings import code
from cgtool.model.capture import Frame, Frames
from cgtool.model.finding import WARNING, Code, Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Chain, frame_of, frames_of, is_internal, line_of, position_of
from cgtool.observe.ops import OpCall
from cgtool.observe.source import deciding_line
from cgtool.observe.tensors import tensors_in
from cgtool.program.workload import Workload, reachable_from
from cgtool.recapture.experiment import Caused, Experiment, Outcome
from cgtool.recapture.host_state import HostState, Item
from cgtool.recapture.iteration import Iteration
from cgtool.recapture.ops import OutsideTensor, storages_in
from cgtool.torch_compat.private import schema

CONTROL_FLOW_FROZEN = code("control-flow-frozen")
CPU_STATE_STEP_COUNTER = code("cpu-state-step-counter")
CPU_WORK_IN_REGION = code("cpu-work-in-region")
METADATA_ADDRESS_CHANGED = code("metadata-address-changed")
PARAMETER_REBOUND = code("parameter-rebound")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")
PYTHON_SIDE_EFFECTS_SKIPPED = code("python-side-effects-skipped")
RNG_FROZEN_SEED = code("rng-frozen-seed")

FROZEN = frozenset(
    (
        CONTROL_FLOW_FROZEN,
        CPU_STATE_STEP_COUNTER,
        CPU_WORK_IN_REGION,
        METADATA_ADDRESS_CHANGED,
        one_iteration.CPU_SCALAR_TENSOR_OPERAND,
        PARAMETER_REBOUND,
        PYTHON_SCALAR_FROZEN,
        RNG_FROZEN_SEED,
    )
)
"""The codes of ``compare_iterations`` that make a replay differ from eager."""

_SHOWN = 3
_FIX_OF_HISTORY = (
    "detach what is kept from one iteration to the next (`state.detach()`), or update it under "
    "`torch.no_grad()`"
)
_FIX_OF_ASSIGNMENT = (
    "allocate the tensor once, before the capture, and where it is assigned now, `copy_()` the new "
    "values into it"
)
_FIX_OF_SIZE = (
    "allocate the tensor once, as large as it can become, write each part at a position that is a "
    "tensor on the device (`index_copy_`), and mask the rest; or capture a graph for each shape"
)
_FIX_OF_DRAW = (
    "draw on the device (`torch.rand((), device=...) < p`) and select with `torch.where`, or "
    "capture one graph for each outcome and choose between them in Python"
)
_WHEN = {
    "next": "in the next call",
    "later": "in a later call",
    "draws": "with other random numbers",
    "clock": "at another time",
}


@dataclass(frozen=True)
class Differences:
    """Findings on differences between iterations."""

    explained: list[Finding]
    """Findings whose cause is known, and what a single iteration shows."""
    unexplained: list[Finding]
    """Ops and numbers that differ for no known reason, which may follow from something else."""
    iteration: Iteration
    """The second one."""
    limits: tuple[str, ...] = ()
    """Why less was tried than could have been."""

    @property
    def findings(self) -> list[Finding]:
        return [*self.explained, *self.unexplained]


def compare_iterations(
    run: Callable[[], Any],
    roots: Any,
    annotations: Annotations,
    inputs: Any,
    workload: Workload | None = None,
    *,
    later: bool = False,
) -> Differences:
    """Run two iterations and compare them. With the ``workload`` it is found which host state
    makes them differ; with ``later`` the code also runs as it would run much later.

    ``inputs`` are the arguments of the callables, in any nesting.
    """
    state = None if workload is None else HostState(partial(reachable_from, workload))
    given = set(storages_in(inputs))
    outcome = Experiment(run, state, roots, annotations, given).compare(later=later)
    explained: list[Finding] = []
    unexplained: list[Finding] = []
    for caused in outcome.caused:
        is_known = bool(caused.items) or caused.trial != "next"
        (explained if is_known else unexplained).append(finding_of(caused, outcome.first))
    explained += one_iteration.findings_of(outcome.first, outcome.second)
    known = {finding.frames[:1] for finding in explained}
    explained += (each for each in _side_effects(outcome) if each.frames[:1] not in known)
    explained += seeded(outcome.second, outcome.first)
    return Differences(explained, unexplained, outcome.second, tuple(outcome.limits))


def finding_of(caused: Caused, first: Iteration) -> Finding:
    """The finding of a difference, at the op that differs or the condition that decides."""
    difference, items, when = caused.difference, caused.items, _WHEN[caused.trial]
    is_random = caused.trial == "draws" or any(item.kind == "random" for item in items)
    evidence = [item.text for item in items if item.kind != "random"][:_SHOWN]
    name = f"`{items[0].path}`" if evidence and items[0].kind != "random" else ""
    severity = WARNING if caused.trial in ("later", "clock") else None
    if difference.kind == "branch":
        finding = _branch(caused, first, name, when)
        if is_random:
            finding = replace(finding, code=RNG_FROZEN_SEED, fix=_FIX_OF_DRAW)
    else:
        call = difference.after
        assert call is not None
        finding = _argument(caused, call.name, name, when, is_random=is_random)
        finding = at_call(finding, call, caused.second.record)
    return replace(finding, evidence=(*finding.evidence, *evidence), severity=severity)


def _branch(caused: Caused, first: Iteration, name: str, when: str) -> Finding:
    before, after = caused.difference.before, caused.difference.after
    calls = [call for call in (before, after) if call is not None]
    reader = next((op.call for op in caused.second.ops if op.has_history), None)
    if before is None or after is None:
        text = f"{_with_line(calls[0])} in one, not in the other"
    else:
        text = f"{_with_line(before)} in one, {_with_line(after)} in the other"
    if reader is not None and all(call.autograd_node for call in calls):
        return at_call(
            Finding(
                CONTROL_FLOW_FROZEN,
                "this line reads what an earlier iteration computed and autograd still follows: "
                "each backward also runs those of the iterations before; a replay repeats the "
                "captured ops",
                evidence=(f"two calls run different ops: {text}",),
                fix=_FIX_OF_HISTORY,
            ),
            reader,
            caused.second.record,
        )
    if name:
        reason = f"{name} decides which ops run, and changes from call to call"
    elif caused.trial == "next":
        reason = "two consecutive calls run different ops"
    else:
        reason = f"{when}, the code runs different ops"
    frames = _frames_of(caused, first) or frames_of(calls[0].chain)
    return Finding(
        CONTROL_FLOW_FROZEN,
        f"{reason}; a replay repeats the captured ops",
        frames,
        evidence=(text,),
    )


def _frames_of(caused: Caused, first: Iteration) -> Frames:
    """The condition where two runs diverge."""
    before, after = caused.difference.before, caused.difference.after
    if before is None or caused.difference.is_added:
        before, after = after, before
    assert before is not None
    chain = _within(before.chain, first.outer)
    other = _within(after.chain, first.outer) if after is not None else None
    return frames_of_branch(chain, other)


def _argument(caused: Caused, op: str, name: str, when: str, *, is_random: bool) -> Finding:
    """The finding of an op that gets another argument, without its place."""
    difference, items = caused.difference, caused.items
    if difference.kind == "tensor":
        return _tensor(caused, op, name, when, is_random=is_random)
    old, new = (
        textwrap.shorten(str(value), 60, placeholder=" ...")
        for value in (difference.old, difference.new)
    )
    evidence = (f"{op} got {old}, then {new}",)
    if difference.kind == "list":
        return Finding(
            CONTROL_FLOW_FROZEN,
            f"{op} gets another number of tensors {when}; a graph keeps those of the capture",
            evidence=evidence,
        )
    # Where an argument is left out in one call, it is the one that the other has.
    given = difference.old if difference.new is None else difference.new
    fix = _fix_of_number(op, given, is_drawn=difference.is_drawn)
    if is_random:
        reason = f"a random number drawn on the host reaches {op}: every replay repeats it"
        return Finding(RNG_FROZEN_SEED, reason, evidence=evidence, fix=fix)
    if difference.kind == "values":
        what, chosen = "a CPU tensor with other values", CPU_WORK_IN_REGION
    else:
        what, chosen = "another number", _code_of(caused, items)
    by = f": {name} changes from call to call" if name else ""
    reason = f"{op} gets {what} {when}{by}; a graph keeps that of the capture"
    return Finding(chosen, reason, evidence=evidence, fix=fix)


def _code_of(caused: Caused, items: Sequence[Item]) -> Code:
    """The code of a number that changes and reaches an op."""
    if caused.trial == "clock" or any(item.kind == "tensor" for item in items):
        return CPU_WORK_IN_REGION
    is_counter = bool(items) and all(item.kind == "number" for item in items)
    return CPU_STATE_STEP_COUNTER if is_counter else PYTHON_SCALAR_FROZEN


def _tensor(caused: Caused, op: str, name: str, when: str, *, is_random: bool) -> Finding:
    old, new = caused.difference.old, caused.difference.new
    assert isinstance(old, OutsideTensor) and isinstance(new, OutsideTensor)
    evidence = (
        f"{op}: {list(old.shape)} at {old.address:#x}, then {list(new.shape)} at {new.address:#x}",
    )
    is_parameter = new.parameter is not None and new.storage != old.storage
    if is_parameter and old.parameter not in (None, new.parameter):
        chosen = "a random number drawn on the host" if is_random else name or "the code"
        return Finding(
            RNG_FROZEN_SEED if is_random else CONTROL_FLOW_FROZEN,
            f"{chosen} chooses another parameter here {when}; a graph always reads that of the "
            "capture",
            evidence=evidence,
            fix=_FIX_OF_DRAW if is_random else None,
        )
    is_resized = old.shape != new.shape
    shape = ", of another shape," if is_resized else ""
    subject = f"a tensor behind {name}" if name else "a tensor that this line reads"
    return Finding(
        PARAMETER_REBOUND if is_parameter else METADATA_ADDRESS_CHANGED,
        f"{subject} is a different tensor{shape} {when}; a graph always reads the tensor of the "
        "capture",
        evidence=evidence,
        fix=_FIX_OF_SIZE if is_resized else None if is_parameter else _FIX_OF_ASSIGNMENT,
    )


def _side_effects(outcome: Outcome) -> Iterator[Finding]:
    """Containers that the code fills with tensors."""
    for before, after in outcome.moved:
        counts = [len(items) for items in (before.before, after.before, after.after)]
        is_growing = counts[0] < counts[1] < counts[2]
        frames = _line_that_names(after.path, outcome.codes)
        if is_growing and frames and any(True for _ in tensors_in([*after.after.values()])):
            yield Finding(
                PYTHON_SIDE_EFFECTS_SKIPPED,
                f"`{after.path}` grows with every call; a replay runs no Python and does not "
                "change it",
                frames,
                evidence=(after.text,),
                severity=WARNING,
            )


_FILLS = re.compile(r"\.(append|add|extend|insert|put|appendleft|update|setdefault)\(|\]\s*=|\+=")


def _line_that_names(path: str, codes: Iterable[CodeType]) -> Frames:
    """A line that seems to fill a container with this name."""
    last = path.partition("[")[0].rpartition(".")[2]
    name = re.compile(rf"\b{re.escape(last)}\b")
    for each in codes:
        if is_internal(each):
            continue
        for _, _, line in each.co_lines():
            text = linecache.getline(each.co_filename, line or 0)
            if name.search(text) and _FILLS.search(text):
                return (Frame(each.co_filename, line or 0, each.co_qualname),)
    return ()


def _with_line(call: OpCall) -> str:
    return f"{call.name} of line {line_of(call.chain[0])}" if call.chain else call.name


def _within(chain: Chain, outer: Chain) -> Chain:
    """A call chain without the end of it that ``outer`` begins with, which may be cut off."""
    lengths = range(min(len(chain), len(outer)), 0, -1)
    shared = next((n for n in lengths if chain[-n:] == outer[:n]), 0)
    return chain[: len(chain) - shared]


def frames_of_branch(chain: Chain, other: Chain | None) -> Frames:
    """The call chain up to the condition where two iterations diverge, innermost first.

    ``other`` is None if the other iteration has ended.
    """
    outer = list(reversed(chain))
    others = list(reversed(other)) if other is not None else []
    for depth, site in enumerate(outer):
        code_object = site[0]
        match = others[depth] if depth < len(others) else None
        is_same = match is not None and match[0] is code_object
        # A call in C and one in Python have different instructions of the same expression.
        if match is not None and is_same and position_of(match) == position_of(site):
            continue
        lines = [line_of(site)]
        if match is not None and is_same:
            lines.append(line_of(match))
        if match is not None and not is_same and depth:
            # The same call leads to a different function: the callee was chosen.
            return frames_of(reversed(outer[:depth]))
        line = deciding_line(code_object, tuple(lines))
        if other is None and depth < len(outer) - 1 and line is None:
            continue
        frame = frame_of(site)
        return (
            Frame(frame.file, line or frame.line, frame.function),
            *frames_of(reversed(outer[:depth])),
        )
    return frames_of(chain)


def _fix_of_number(op: str, number: Any, *, is_drawn: bool) -> str | None:
    """The fix for a number that changes, if ``op`` takes no tensor in its place; else None.
    ``is_drawn``: the op draws random numbers, and this is not a size of its result."""
    name, _, overload = op.partition(".")
    try:
        arguments = schema(name, overload).arguments
    except RuntimeError:  # PyTorch does not know the op
        return None
    types = " ".join(str(each.type) for each in arguments)
    wanted = {float: "float", int: "int", bool: "bool"}.get(type(number))
    is_factory = "Tensor" not in types
    # What takes a Scalar is called with a tensor elsewhere (`x ** t`, `x.clamp(t)`), and for what
    # takes a tensor, PyTorch made the number one (`x / 2`). A factory reads a tensor on the host.
    if wanted is None or (wanted not in types and not is_factory):
        return None
    if wanted == "bool":
        return f"`{op}` takes no tensor for a flag: capture a graph for each value"
    if is_drawn and "number" not in types:
        return (
            f"`{op}` takes only numbers: draw from `torch.rand` or `torch.randn`, and scale or "
            "compare what is drawn with a tensor on the device (`(torch.rand(...) * n).long()`, "
            "`torch.rand_like(x) < keep`), or capture a graph for each value"
        )
    if is_factory:
        return (
            f"`{op}` takes only numbers: make the tensor once, and select from it or change it on "
            "the device (instead of a length, `torch.arange(n) < length`), or capture a graph for "
            "each value"
        )
    if "number" in types:
        return None
    instead = ""
    if not isinstance(number, float):
        instead = (
            " (instead of a slice, `index_copy_` or `index_select` with a tensor of positions)"
        )
    return (
        f"`{op}` takes only numbers: keep the value in a tensor on the device and use ops that "
        f"take tensors{instead}, or capture a graph for each value"
    )
