"""Two eager iterations held against each other: what differs, a graph would freeze.

A graph repeats the ops of the iteration that was captured, with its numbers and its addresses. So
an op, a number or the address of a tensor from outside that is not the same in the next iteration
is wrong in every replay but the first. Needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cgtool.detectors.collect import at_call
from cgtool.detectors.hostreads import Change, HostReads
from cgtool.detectors.iteration import Iteration, Op, observe, storages_in
from cgtool.findings.registry import code
from cgtool.model.capture import Frame
from cgtool.model.finding import WARNING, Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Site, frame_of, frames_of, line_of
from cgtool.observe.ops import OpCall
from cgtool.observe.source import deciding_line

CONTROL_FLOW_FROZEN = code("control-flow-frozen")
CPU_SCALAR_TENSOR_OPERAND = code("cpu-scalar-tensor-operand")
CPU_STATE_STEP_COUNTER = code("cpu-state-step-counter")
CPU_WORK_IN_REGION = code("cpu-work-in-region")
IN_PLACE_ON_STATIC_INPUT = code("in-place-on-static-input")
METADATA_ADDRESS_CHANGED = code("metadata-address-changed")
PARAMETER_REBOUND = code("parameter-rebound")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")
PYTHON_SIDE_EFFECTS_SKIPPED = code("python-side-effects-skipped")
RNG_FROZEN_SEED = code("rng-frozen-seed")
STALE_ACCUMULATOR_OR_UNINITIALISED = code("stale-accumulator-or-uninitialised")


def compare(
    run: Callable[[], Any], roots: Any, annotations: Annotations, inputs: Any
) -> tuple[list[Finding], Iteration]:
    """Run two iterations; what the second does otherwise, and the second itself.

    ``inputs`` are the arguments that the callables are given, in any nesting.
    """
    reads, given = HostReads(), set(storages_in(inputs))
    first = observe(run, roots, annotations, reads, given)
    second = observe(run, roots, annotations, reads, given)
    changes = list(reads.changes(first.state, second.state))
    return list(_Comparison(first, second, reads, changes).findings()), second


class _Comparison:
    def __init__(
        self, first: Iteration, second: Iteration, reads: HostReads, changes: Sequence[Change]
    ) -> None:
        self.first, self.second = first, second
        self.reads, self.changes = reads, changes
        self.explained: set[int] = set()
        """Indices of the changes that some op explains."""

    def findings(self) -> Iterator[Finding]:
        length = min(len(self.first.ops), len(self.second.ops))
        for index in range(length):
            a, b = self.first.ops[index], self.second.ops[index]
            if a.call.name != b.call.name or _site(a) != _site(b):
                yield self._branch(a, b)
                break
            if a.numbers != b.numbers and not b.in_optimizer:
                yield self._number(index, a, b)
            if not b.host and a.outside != b.outside:
                yield from self._address(a, b)
        else:
            longer = self.first if len(self.first.ops) > length else self.second
            if len(longer.ops) > length:
                yield self._branch(longer.ops[length], None)
        yield from self._operands()
        yield from self._memory()
        yield from self._state()

    def _at(self, finding: Finding, op: Op) -> Finding:
        return at_call(finding, op.call, self.second.record)

    def _branch(self, a: Op, b: Op | None) -> Finding:
        frames = _parting(a.call.chain, b.call.chain if b is not None else None)
        moved = tuple(one.text for one in self._changes_in(a.call, tested=True, numbers_only=True))[
            :3
        ]
        then = f"{b.call.name} in the next" if b is not None else "not in the other"
        return Finding(
            CONTROL_FLOW_FROZEN,
            f"two calls in a row run different ops: {a.call.name} in one, {then}; a graph repeats "
            "those of the capture",
            frames or frames_of(a.call.chain),
            evidence=moved,
        )

    def _changes_in(
        self, call: OpCall, *, tested: bool = False, numbers_only: bool = False
    ) -> Iterator[Change]:
        """Changes of values that the functions around an op read."""
        files = {(site[0].co_filename, site[0].co_qualname) for site in call.chain}
        for index, one in enumerate(self.changes):
            use = one.watched.use
            if (one.watched.frame.file, one.watched.frame.function) not in files:
                continue
            if (tested and not use.tested) or (numbers_only and one.after.kind == "tensor"):
                continue
            self.explained.add(index)
            yield one

    def _number(self, index: int, a: Op, b: Op) -> Finding:
        old, new = next(
            ((x[1], y[1]) for x, y in zip(a.numbers, b.numbers, strict=False) if x != y),
            ("", ""),
        )
        seen = (f"{b.call.name} was given {old}, then {new}",)
        for name, chain in self.second.drawn:
            if chain and _shares_function(chain, b.call.chain):
                code = RNG_FROZEN_SEED if name == "random" else CPU_WORK_IN_REGION
                what = "a random number" if name == "random" else "the clock"
                return Finding(
                    code,
                    f"{what} of the host goes into {b.call.name}: every replay repeats that of "
                    "the capture",
                    frames_of(chain),
                    module=b.call.module[0] if b.call.module else None,
                    evidence=seen,
                )
        for op in reversed(self.second.ops[:index]):
            if op.host and op.call.chain and _shares_function(op.call.chain, b.call.chain):
                return self._at(
                    Finding(
                        CPU_WORK_IN_REGION,
                        "what is computed here on the host goes into the graph as a number: every "
                        "replay repeats that of the capture",
                        evidence=seen,
                    ),
                    op,
                )
        moved = [
            one
            for one in self._changes_in(b.call, numbers_only=True)
            if one.after.kind in ("number", "host tensor", "size")
        ]
        names = {(one.watched.use.text, one.watched.owner) for one in moved}
        for watched in self.reads.watched:
            use = watched.use
            if not use.written or (use.text, watched.owner) not in names:
                continue
            one = next(x for x in moved if x.watched.use.text == use.text)
            return Finding(
                CPU_STATE_STEP_COUNTER,
                f"{use.text} moves with every call on the host, and a replay does not move it",
                (watched.frame, *_outer(watched.frame, b.call.chain)),
                module=b.call.module[0] if b.call.module else None,
                evidence=(*seen, one.text),
            )
        return self._at(
            Finding(
                PYTHON_SCALAR_FROZEN,
                f"{b.call.name} gets another number in the next call: a graph keeps that of the "
                "capture",
                evidence=(*seen, *dict.fromkeys(one.text for one in moved)),
            ),
            b,
        )

    def _address(self, a: Op, b: Op) -> Iterator[Finding]:
        before = {one.position: one for one in a.outside}
        for new in b.outside:
            old = before.get(new.position)
            if old is None or (old.address == new.address and old.shape == new.shape):
                continue
            if new.storage not in self.first.seen and not self.second.outlived(new.storage):
                # Nobody had it before and nobody has it after: PyTorch made it in C++ for this
                # call alone (the index tensor of x[[0, 2]]).
                continue
            names = [
                one.watched.use.text
                for one in self.changes
                if one.after.kind == "tensor" and one.after.content == (new.shape, new.address)
            ]
            moved = [index for index, one in enumerate(self.changes) if one.after.kind == "tensor"]
            self.explained.update(moved)
            name = names[0] if names else "a tensor that it reads"
            yield self._at(
                Finding(
                    PARAMETER_REBOUND if new.parameter else METADATA_ADDRESS_CHANGED,
                    f"{name} is another tensor in the next call: a graph reads the one of the "
                    "capture for ever",
                    evidence=(
                        f"{b.call.name}: {list(old.shape)} at {old.address:#x}, then "
                        f"{list(new.shape)} at {new.address:#x}",
                    ),
                ),
                b,
            )

    def _operands(self) -> Iterator[Finding]:
        for op in self.second.ops:
            if op.host_scalar and not op.in_optimizer:
                yield self._at(
                    Finding(
                        CPU_SCALAR_TENSOR_OPERAND,
                        f"{op.call.name} gets a tensor of the host: its value at the capture "
                        "becomes an argument of the kernel, and stays",
                    ),
                    op,
                )

    def _memory(self) -> Iterator[Finding]:
        calls = self.second.record.calls
        for op in self.second.ops:
            if op.writes_input and not op.host:
                yield self._at(
                    Finding(
                        IN_PLACE_ON_STATIC_INPUT,
                        f"{op.call.name} writes into an input of the graph: the next replay starts "
                        "from what this one left there, unless it is refilled",
                    ),
                    op,
                )
            if op.reads_nothing_of is not None and not op.host:
                yield at_call(
                    Finding(
                        STALE_ACCUMULATOR_OR_UNINITIALISED,
                        f"{op.call.name} reads this memory before anything is written there: a "
                        "replay finds what the one before it left",
                    ),
                    calls[op.reads_nothing_of],
                    self.second.record,
                )

    def _state(self) -> Iterator[Finding]:
        """Host state that moved and that no op shows."""
        for index, one in enumerate(self.changes):
            if index in self.explained or one.after.kind == "tensor":
                continue
            use = one.watched.use
            if use.tested and not use.written:
                yield Finding(
                    CONTROL_FLOW_FROZEN,
                    f"{use.text} decides a branch here and moves from call to call: a graph keeps "
                    "the branch of the capture",
                    (one.watched.frame,),
                    evidence=(one.text,),
                )
            elif use.written:
                yield Finding(
                    PYTHON_SIDE_EFFECTS_SKIPPED,
                    f"{use.text} changes with every call; a replay runs no Python and leaves it "
                    "as it is",
                    (one.watched.frame,),
                    evidence=(one.text,),
                    severity=WARNING,
                )


def _site(op: Op) -> tuple[Any, ...]:
    return tuple((id(code), lasti) for code, lasti in op.call.chain)


def _shares_function(one: tuple[Site, ...], other: tuple[Site, ...]) -> bool:
    codes = {id(code) for code, _ in other}
    return any(id(code) in codes for code, _ in one)


def _outer(frame: Frame, chain: tuple[Site, ...]) -> tuple[Frame, ...]:
    """The callers of the function that ``frame`` lies in."""
    frames = frames_of(chain)
    for index, one in enumerate(frames):
        if (one.file, one.function) == (frame.file, frame.function):
            return frames[index + 1 :]
    return ()


def _parting(one: tuple[Site, ...], other: tuple[Site, ...] | None) -> tuple[Frame, ...]:
    """The chain up to the condition where two iterations part, innermost first."""
    outer = list(reversed(one))
    against = list(reversed(other)) if other is not None else []
    for depth, site in enumerate(outer):
        code = site[0]
        match = against[depth] if depth < len(against) else None
        if match is not None and match[0] is code and match[1] == site[1]:
            continue
        lines = [line_of(site)]
        if match is not None and match[0] is code:
            lines.append(line_of(match))
        if match is not None and match[0] is not code and depth:
            # The same call leads elsewhere: the callee was chosen.
            return frames_of(reversed(outer[:depth]))
        if other is None and depth < len(outer) - 1 and deciding_line(code, tuple(lines)) is None:
            continue
        decided = deciding_line(code, tuple(lines))
        here = frame_of(site)
        place = Frame(here.file, decided or here.line, here.function)
        return (place, *frames_of(reversed(outer[:depth])))
    return frames_of(one)
