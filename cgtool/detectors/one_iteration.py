"""Findings that a single iteration shows: CPU tensors that become constants, inputs that are
written, and memory that is read before it is written."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from cgtool.detectors.reporting import at_call
from cgtool.findings import code
from cgtool.model.finding import NOTE, Finding
from cgtool.observe.effects import overwrites
from cgtool.recapture.iteration import Iteration
from cgtool.recapture.ops import Op

CPU_SCALAR_TENSOR_OPERAND = code("cpu-scalar-tensor-operand")
IN_PLACE_ON_STATIC_INPUT = code("in-place-on-static-input")
STALE_ACCUMULATOR_OR_UNINITIALIZED = code("stale-accumulator-or-uninitialized")


def findings_of(first: Iteration, second: Iteration) -> Iterator[Finding]:
    """The findings of the second iteration; the first one shows which numbers change."""
    yield from _host_operands(first, second)
    for op in second.ops:
        if op.host:
            continue
        if op.inputs_written:
            yield _written_input(op, second)
        if op.reads_nothing_of is not None:
            yield at_call(
                Finding(
                    STALE_ACCUMULATOR_OR_UNINITIALIZED,
                    f"{op.call.name} reads this memory before anything is written to it: a replay "
                    "reads what the previous replay left there",
                ),
                second.record.calls[op.reads_nothing_of],
                second.record,
            )


def _host_operands(first: Iteration, second: Iteration) -> Iterator[Finding]:
    changing = {
        new.site
        for old, new in zip(first.in_order(), second.in_order(), strict=False)
        if old.site == new.site and old.numbers != new.numbers
    }
    for op in second.ops:
        if op.host_scalar and not op.in_optimizer:
            finding = at_call(
                Finding(
                    CPU_SCALAR_TENSOR_OPERAND,
                    f"{op.call.name} gets a CPU tensor: its value at the capture becomes a "
                    "constant argument of the kernel",
                ),
                op.call,
                second.record,
            )
            changes = op.host_input or op.site in changing
            yield finding if changes else replace(finding, severity=NOTE)


def _written_input(op: Op, iteration: Iteration) -> Finding:
    finding = at_call(
        Finding(
            IN_PLACE_ON_STATIC_INPUT,
            f"{op.call.name} writes to an input of the graph: the next replay starts from the "
            "result, unless the input is refilled",
        ),
        op.call,
        iteration.record,
    )
    # What is read first and then updated is state: the next token, the lengths.
    is_state = op.carries_over or _is_added_to(op, iteration)
    return replace(finding, severity=NOTE) if is_state else finding


def _is_added_to(op: Op, iteration: Iteration) -> bool:
    """Whether the arguments that an op updates are used by nothing else, and are no results: counts
    and sums, which are read after some calls."""
    used = {
        tensor.storage
        for other in iteration.ops
        if other.inputs_written.isdisjoint(op.inputs_written)
        for tensor in other.outside
    }
    is_known = iteration.returns and not overwrites(op.call.name)
    return is_known and op.inputs_written.isdisjoint(used | iteration.returned)
