"""Two eager iterations compared: what differs between them, a graph would freeze.

A graph repeats the ops of the captured iteration, with its numbers and addresses. So an op, a
number, or the address of a tensor from outside that differs in the next iteration is wrong in every
replay but the first. Needs no GPU.
"""

from __future__ import annotations

import itertools
import linecache
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from cgtool.detectors.frozen_values import (
    CONTROL_FLOW_FROZEN,
    CPU_STATE_STEP_COUNTER,
    CPU_WORK_IN_REGION,
    PYTHON_SCALAR_FROZEN,
    PYTHON_SIDE_EFFECTS_SKIPPED,
    RNG_FROZEN_SEED,
    FrozenValues,
)
from cgtool.detectors.generator_states import seeded
from cgtool.detectors.outside_tensors import OutsideTensors, is_tensor_at, places_of
from cgtool.detectors.reporting import at_call
from cgtool.findings import code
from cgtool.model.capture import Frame, Frames
from cgtool.model.finding import NOTE, WARNING, Code, Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import overwrites
from cgtool.observe.frames import Chain, frame_of, frames_of, line_of, position_of
from cgtool.observe.host_reads import Change, HostReads, Watched
from cgtool.observe.host_values import SIZE, texts_of
from cgtool.observe.iteration import Iteration, observe
from cgtool.observe.kept_ops import Op, storages_in
from cgtool.observe.ops import OpCall
from cgtool.observe.source import deciding_line, statement_start
from cgtool.torch_compat.private import schema

CPU_SCALAR_TENSOR_OPERAND = code("cpu-scalar-tensor-operand")
IN_PLACE_ON_STATIC_INPUT = code("in-place-on-static-input")
METADATA_ADDRESS_CHANGED = code("metadata-address-changed")
PARAMETER_REBOUND = code("parameter-rebound")
STALE_ACCUMULATOR_OR_UNINITIALIZED = code("stale-accumulator-or-uninitialized")

FROZEN = frozenset(
    (
        CONTROL_FLOW_FROZEN,
        CPU_SCALAR_TENSOR_OPERAND,
        CPU_STATE_STEP_COUNTER,
        CPU_WORK_IN_REGION,
        METADATA_ADDRESS_CHANGED,
        PARAMETER_REBOUND,
        PYTHON_SCALAR_FROZEN,
        RNG_FROZEN_SEED,
    )
)
"""The codes of ``compare_iterations`` that make a replay differ from eager."""

_SHOWN_CHANGES = 3
_FIX_OF_HISTORY = (
    "detach what is kept from one iteration to the next (`state.detach()`), or update it under "
    "`torch.no_grad()`"
)
_FIX_OF_ASSIGNMENT = (
    "allocate the tensor once, before the capture, and where it is assigned now, `copy_()` the new "
    "values into it"
)
_FIX_OF_QUEUE = (
    "allocate the tensors once, before the capture, and where they are moved or exchanged now, "
    "copy from one to the other: `older.copy_(newer)`"
)
_FIX_OF_SIZE = (
    "allocate the tensor once, as large as it can become, write each part at a position that is a "
    "tensor on the device (`index_copy_`), and mask the rest; or capture a graph for each shape"
)
_FIX_OF_REPLACEMENT = (
    "keep the object, and `copy_()` the new values into its tensors (`load_state_dict`); to choose "
    "between several objects, capture a graph for each"
)

_INDEXES = ("aten::index.", "aten::index_put", "aten::_index_put", "aten::_unsafe_index")
"""Ops for which PyTorch makes tensors of lists (`x[[0, 2]]`)."""


@dataclass(frozen=True)
class Differences:
    """What differs between two iterations."""

    explained: list[Finding]
    """Those whose cause is known, and what a single iteration shows."""
    unexplained: list[Finding]
    """Other ops and numbers for no known reason, which may follow from something else."""
    iteration: Iteration
    """The second one."""
    uses_reads: bool
    """Whether a value that the second iteration reads from the device reaches one of its ops, or
    decides which ops run."""

    @property
    def findings(self) -> list[Finding]:
        return [*self.explained, *self.unexplained]


def compare_iterations(
    run: Callable[[], Any], roots: Any, annotations: Annotations, inputs: Any
) -> Differences:
    """Run two iterations and compare them.

    Other ops in the second for no known reason may be a warm-up (TorchScript compiles a function in
    its second call). They are reported if two more iterations differ as well.

    ``inputs`` are the arguments of the callables, in any nesting.
    """
    reads, given = HostReads(), set(storages_in(inputs))
    iterations: list[Iteration] = []

    def run_until(count: int) -> None:
        while len(iterations) < count:
            iterations.append(observe(run, roots, annotations, reads, given))

    def compared(first: Iteration, second: Iteration) -> tuple[Differences, bool]:
        changes = list(reads.changes(first.state, second.state))
        comparison = _Comparison(first, second, reads, changes)
        explained = [*comparison.findings(), *seeded(second, first)]
        differences = Differences(
            explained, comparison.unexplained, iterations[-1], comparison.frozen.uses_reads()
        )
        return differences, comparison.branches_unexplained

    run_until(2)
    differences, unexplained = compared(*iterations)
    if unexplained:
        run_until(4)
        for first, second in itertools.pairwise(iterations[1:]):
            differences, unexplained = compared(first, second)
            if unexplained:
                break
    return differences


def _key(call: OpCall) -> tuple[Any, ...]:
    return call.name, *((id(code_object), lasti) for code_object, lasti in call.chain)


def _in_order(ops: Sequence[Op]) -> list[Op]:
    """Those of this thread as they ran; then those of others, which run in any order, by line, and
    of one line by what they read."""
    here = threading.get_ident()
    others = [op for op in ops if op.call.thread != here]
    others.sort(key=_of_thread)
    return [*(op for op in ops if op.call.thread == here), *others]


def _of_thread(op: Op) -> tuple[Any, ...]:
    memory = [(str(tensor.position), tensor.address) for tensor in op.outside]
    return *_key(op.call), op.call.module or (), memory, repr(op.numbers), op.sizes


def _is_added(before: Sequence[Op], after: Sequence[Op]) -> bool:
    """Whether the second iteration runs ``after[0]`` in addition, and then goes on as the first."""
    if not before or not after:
        return False
    expected, other = _key(before[0].call), _key(after[0].call)
    goes_on = any(_key(op.call) == expected for op in after)
    return goes_on and all(_key(op.call) != other for op in before)


class _Comparison:
    def __init__(
        self, first: Iteration, second: Iteration, reads: HostReads, changes: Sequence[Change]
    ) -> None:
        self.first, self.second = first, second
        self.reads, self.changes = reads, changes
        self.frozen = FrozenValues(first, second, reads, changes)
        self.tensors = OutsideTensors(first, second, reads, changes)
        self.branches_unexplained = False
        """Whether the second iteration ran other ops for no known reason."""
        self.unexplained: list[Finding] = []
        self._resized: set[tuple[int, int]] = set()
        """Sizes of tensors in the first iteration that are others in the second, with these."""
        self._resized_in: set[tuple[Any, ...]] = set()
        """The calls in which an op reads tensors of other sizes in the second iteration."""
        self._rebound: set[int] = set()
        """The storages of parameters that are reported as rebound."""
        self._explained: set[int] = set()
        """The storages that ops read because of a condition, a choice or an object."""
        self._assigned: dict[str, Frames] = {}
        """Where a name gets another tensor, by the text that says so."""
        self._chosen: list[Finding] = []
        """On tensors that a value on the host chooses, which is to be named first."""

    def findings(self) -> Iterator[Finding]:
        before, after = (
            _in_order([op for op in iteration.ops if not op.host])
            for iteration in (self.first, self.second)
        )
        addresses: list[Finding] = []
        different: list[Op] = []
        """Ops that get other numbers in the second iteration."""
        self._resized_in = {
            _key(new.call)[1:]
            for old, new in zip(before, after, strict=False)
            if old.sizes != new.sizes and _key(old.call) == _key(new.call)
        }
        for place, (old, new) in enumerate(itertools.zip_longest(before, after)):
            if old is None or new is None or _key(old.call) != _key(new.call):
                is_added = _is_added(before[place:], after[place:])
                self.unexplained += self._branch(old or new, new if old else None, is_added)
                break
            if len(old.sizes) == len(new.sizes):
                self._resized |= {
                    sizes for sizes in zip(old.sizes, new.sizes, strict=True) if len({*sizes}) > 1
                }
            numbers = self._numbers(old), self._numbers(new)
            is_longer = old.lists != new.lists
            if (is_longer or numbers[0] != numbers[1]) and not new.in_optimizer:
                forward = self.second.record.forward_of(new.call)
                if not any(op.call is forward for op in different):
                    if is_longer:
                        self.unexplained += self._list(old, new)
                    else:
                        # Also of what PyTorch computes of a size: `quantile`.
                        follows = old.sizes != new.sizes or (
                            bool(new.call.chain) and _key(new.call)[1:] in self._resized_in
                        )
                        self.unexplained += self._number(new, *numbers, follows=follows)
                different.append(new)
            if old.outside != new.outside:
                moved = {part.storage for op in different for part in op.outside}
                addresses += self._addresses(old, new, moved)
        yield from _each_change_once(addresses, self._assigned)
        frozen = list(self.frozen.findings())
        yield from frozen
        yield from _each_change_once(self._chosen, {})
        yield from self._host_operands(different)
        yield from self._memory()
        known = {finding.frames[:1] for finding in frozen}
        yield from (each for each in self._side_effects() if each.frames not in known)

    def _at(
        self, call: OpCall, code: Code, reason: str, *evidence: str, fix: str | None = None
    ) -> Finding:
        return at_call(Finding(code, reason, evidence=evidence, fix=fix), call, self.second.record)

    def _branch(self, before: Op, after: Op | None, is_added: bool) -> Iterator[Finding]:
        """``is_added``: ``after`` runs in addition, before what the first iteration runs here."""
        chain = _within(before.call.chain, self.first.outer)
        next_chain = _within(after.call.chain, self.first.outer) if after else None
        if is_added and next_chain is not None:
            chain, next_chain = next_chain, chain
        frames = frames_of_branch(chain, next_chain)
        ops = [op.call for op in (before, after) if op]
        one, other = _with_line(before.call), _with_line(after.call) if after else ""
        differences = f"{other} in the next" if after else "not in the other"
        text = f"two consecutive calls run different ops: {one} in one, {differences}"
        if not self.frozen.explain_branch(ops, text):
            self.branches_unexplained = True
            reader = next((op.call for op in self.second.ops if op.has_history), None)
            if reader is not None and all(call.autograd_node for call in ops):
                yield self._at(
                    reader,
                    CONTROL_FLOW_FROZEN,
                    "this line reads what an earlier iteration computed and autograd still "
                    "follows: each backward also runs those of the iterations before; a replay "
                    "repeats the captured ops",
                    text,
                    fix=_FIX_OF_HISTORY,
                )
                return
            yield Finding(
                CONTROL_FLOW_FROZEN,
                f"{text}; a replay repeats the captured ops",
                frames or frames_of(before.call.chain),
            )

    def _numbers(self, op: Op) -> list[Any]:
        """What a graph keeps of its numbers: not memory of the host that a replay fills again."""
        filled = self.first.filled | self.second.filled
        return [each for each in op.numbers if op.read_on_host.get(each[0]) not in filled]

    def _list(self, before: Op, after: Op) -> Iterator[Finding]:
        """The op gets a list of another number of tensors."""
        old, new = next(
            (before.lists.get(key, 0), after.lists.get(key, 0))
            for key in {**before.lists, **after.lists}
            if before.lists.get(key) != after.lists.get(key)
        )
        evidence = f"{after.call.name} got {old}, then {new} tensors"
        if not self.frozen.explain_number(after.call, evidence, None):
            yield self._at(
                after.call,
                CONTROL_FLOW_FROZEN,
                f"{after.call.name} gets another number of tensors in the next call; a graph "
                "keeps those of the capture",
                evidence,
                *itertools.islice(self._changes_around(after.call), _SHOWN_CHANGES),
            )

    def _number(
        self, op: Op, before: Sequence[Any], after: Sequence[Any], *, follows: bool
    ) -> Iterator[Finding]:
        """``follows``: the op gets tensors of other sizes, or the call that it is part of does, so
        that its numbers may follow from these; what has changed the sizes is reported."""
        call = op.call
        values = [x[1] for x in before], [y[1] for y in after]  # defaults are left out
        old, new = next(
            ((x[1], y[1]) for x, y in zip(before, after, strict=False) if x != y), values
        )
        if self._is_read_by(call, new):
            return
        shown = [textwrap.shorten(text, 60, placeholder=" ...") for text in texts_of(old, new)]
        evidence = f"{call.name} got {shown[0]}, then {shown[1]}"
        # Where an argument is left out in one call, it is the one that the other has.
        given = max(values, key=len)[min(map(len, values)) :] if new is values[1] else [new]
        differing = [(x, y) for x, y in zip(before, after, strict=False) if x != y]
        is_drawn = op.random and all(place[1] < 0 for _, (place, _) in differing)
        fix = _fix_of_number(call.name, next(iter(given), None), is_drawn=is_drawn)
        # In backward: the sizes of a tensor that was reduced.
        values_differing = {(x[1], y[1]) for x, y in differing}
        follows |= len(before) == len(after) and self._resized >= values_differing
        follows |= self._reads_beside(call)
        if not self.frozen.explain_number(call, evidence, fix) and not follows:
            is_table = isinstance(new, str) and new.startswith("[") and self._is_read(op, new)
            what, kept = "a different number", "the number"
            if is_table:
                what, kept = "a CPU tensor with different values", "the values"
            found = self._at(
                call,
                CPU_WORK_IN_REGION if is_table else PYTHON_SCALAR_FROZEN,
                f"{call.name} gets {what} in the next call; a graph keeps {kept} of the capture",
                evidence,
                *itertools.islice(self._changes_around(call), _SHOWN_CHANGES),
            )
            yield replace(found, fix=fix)

    def _is_read_by(self, call: OpCall, number: Any) -> bool:
        """Whether the expression that runs an op has read the number from the device for it
        (``x.add_(y, alpha=rate)``), which is not permitted in a capture."""
        return bool(call.chain) and any(
            op.answer == number and op.call.chain[:1] == call.chain[:1]
            for op in self.second.ops
            if op.reads_device
        )

    def _reads_beside(self, call: OpCall) -> bool:
        """Whether the function of a library that runs an op has read from the device: what it
        passes to the op may follow from that."""
        return bool(call.chain) and any(
            op.call.chain[:1] == call.chain[:1] and op.call.module == call.module
            for op in self.second.ops
            if op.reads_device
        )

    @staticmethod
    def _is_read(op: Op, value: str) -> bool:
        """Whether these are the values of a CPU tensor among the arguments."""
        return any(number == value and place in op.read_on_host for place, number in op.numbers)

    def _changes_around(self, call: OpCall) -> Iterator[str]:
        """Changes of numbers that the functions around an op read."""
        functions = {(site[0].co_filename, site[0].co_qualname) for site in call.chain}
        texts = (
            change.text
            for change in self.changes
            if change.after.kind in ("number", "host tensor")
            and (change.watched.frame.file, change.watched.frame.function) in functions
        )
        return iter(dict.fromkeys(texts))

    def _addresses(self, before: Op, after: Op, moved: set[int]) -> Iterator[Finding]:
        """``moved``: the storages that ops with different numbers take views of."""
        by_position = {tensor.position: tensor for tensor in before.outside}
        for new in after.outside:
            old = by_position.get(new.position)
            is_there = old is not None and (old.address, old.shape) == (new.address, new.shape)
            # Another tensor where the old one was freed: an allocator uses its memory again.
            is_again = old is not None and (
                old.storage != new.storage and not self.first.outlived(old.storage)
            )
            if old is None or (is_there and not is_again):
                continue
            if new.storage == old.storage and new.storage in (moved | self.first.emptied):
                # Another part of the same tensor, whose number was reported; or in memory that
                # each iteration takes for it, and gives back.
                continue
            is_short_lived = new.storage not in self.first.storages and not self.second.outlived(
                new.storage
            )
            if is_short_lived and (
                after.call.name.startswith(_INDEXES) or not self.tensors.was_held(new)
            ):
                # It existed neither before nor after: PyTorch created it in C++ for this call.
                continue
            shown = (
                f"{after.call.name}: {list(old.shape)} at {old.address:#x}, then "
                f"{list(new.shape)} at {new.address:#x}"
            )
            if after.in_optimizer and new.storage in self._explained:
                # It has a gradient because of what was reported there.
                continue
            is_named = any(is_tensor_at(change.after, new) for change in self.changes)
            replaced = [] if is_named else self.frozen.explain_object(after.call)
            if replaced:
                self._explained.add(new.storage)
                yield self._at(
                    after.call,
                    METADATA_ADDRESS_CHANGED,
                    f"`{replaced[0].watched.use.text}` is a different object in the next call; a "
                    "graph always reads the tensors of the one of the capture",
                    shown,
                    *self.frozen.changed_at(replaced),
                    fix=_FIX_OF_REPLACEMENT,
                )
                continue
            if not is_named and (
                self.frozen.explain_branch([after.call], shown, of_tensors=True)
                or self.frozen.explain_choice(after.call, shown)
            ):
                self._explained.add(new.storage)
                continue
            # A parameter that other ops read as well was not rebound, nor was one of several that
            # there are all the time: another one is chosen.
            is_rebound = new.parameter is not None and new.storage not in self.first.storages
            is_rebound &= new.storage in self.tensors.given or not self.first.outlived(old.storage)
            if is_rebound:
                self._rebound.add(new.storage)
            elif new.storage in self._rebound:
                # A view of the parameter: `t` in `linear`.
                continue
            is_chosen = False
            holding: list[Watched] = []
            changed = self.tensors.memory_set() if is_rebound else self.tensors.memory_set_of(new)
            fix = _FIX_OF_ASSIGNMENT if changed and not is_rebound else None
            if not changed and not is_rebound:
                holding = self.tensors.changed_at(new.address)
                was_held = bool(holding)
                holding = holding or self.tensors.exchanged_at(new)
                changed = places_of(
                    (each.use.text, each.frame.file, each.use.line, each.use.by) for each in holding
                )
                # A tensor of each iteration that takes the place of the one before, not beside it.
                is_kept = (
                    was_held and self.tensors.was_held(old) and self.first.outlived(old.storage)
                )
                is_new = new.storage in self.tensors.made and not is_kept
                are_tensors = all(isinstance(each.look_up(), torch.Tensor) for each in holding)
                if holding and (are_tensors or is_new):
                    fix = _FIX_OF_ASSIGNMENT
                    if len(changed) == 1:
                        frame = replace(holding[0].frame, line=holding[0].use.line)
                        self._assigned[changed[0]] = (frame, *self.frozen.callers_of(frame))
                elif holding:
                    fix = _FIX_OF_QUEUE
            if not changed and not is_rebound:
                choosing = self.frozen.explain_address(after.call, shown)
                if choosing == []:
                    self._explained.add(new.storage)
                    continue
                changed = choosing or self.tensors.memory_set()
                is_chosen = choosing is not None
                if not is_chosen and new.storage in self.tensors.made:
                    fix = _FIX_OF_ASSIGNMENT
            holders = {each.use.text for each in holding}
            name = self.tensors.name_of(new) or (
                f"a tensor in `{holders.pop()}`"
                if len(holders) == 1
                else "a tensor that this line reads"
            )
            is_resized = old.shape != new.shape
            if fix is not None and is_resized:
                fix = _FIX_OF_SIZE
            finding = self._at(
                after.call,
                PARAMETER_REBOUND if is_rebound else METADATA_ADDRESS_CHANGED,
                f"{name} is a different tensor{', of another shape,' if is_resized else ''} in "
                "the next call; a graph always reads the tensor of the capture",
                shown,
                *changed,
            )
            if is_chosen:
                self._explained.add(new.storage)
                self._chosen.append(finding)
            else:
                yield finding if fix is None else replace(finding, fix=fix)

    def _host_operands(self, different: Sequence[Op]) -> Iterator[Finding]:
        for op in self.second.ops:
            if op.host_scalar and not op.in_optimizer:
                changes = op.host_input or op in different
                finding = self._at(
                    op.call,
                    CPU_SCALAR_TENSOR_OPERAND,
                    f"{op.call.name} gets a CPU tensor: its value at the capture becomes a "
                    "constant argument of the kernel",
                )
                yield finding if changes else replace(finding, severity=NOTE)

    def _memory(self) -> Iterator[Finding]:
        for op in self.second.ops:
            if op.host:
                continue
            if op.inputs_written:
                finding = self._at(
                    op.call,
                    IN_PLACE_ON_STATIC_INPUT,
                    f"{op.call.name} writes to an input of the graph: the next replay starts from "
                    "the result, unless the input is refilled",
                )
                # What is read first and then updated is state: the next token, the lengths.
                is_state = op.carries_over or self._is_added_to(op)
                yield replace(finding, severity=NOTE) if is_state else finding
            if op.reads_nothing_of is not None:
                yield self._at(
                    self.second.record.calls[op.reads_nothing_of],
                    STALE_ACCUMULATOR_OR_UNINITIALIZED,
                    f"{op.call.name} reads this memory before anything is written to it: a replay "
                    "reads what the previous replay left there",
                )

    def _is_added_to(self, op: Op) -> bool:
        """Whether the arguments that an op updates are used by nothing else, and are no results:
        counts and sums, which are read after some calls."""
        used = {
            tensor.storage
            for other in self.second.ops
            if other.inputs_written.isdisjoint(op.inputs_written)
            for tensor in other.outside
        }
        is_known = bool(self.second.ran.outputs) and not overwrites(op.call.name)
        return is_known and op.inputs_written.isdisjoint(used | self.second.returned)

    def _side_effects(self) -> Iterator[Finding]:
        """Containers that the code fills with tensors."""
        for change in self.changes:
            grows = change.after.has_tensors and not change.spares(SIZE)
            if change.watched.use.written and grows:
                yield Finding(
                    PYTHON_SIDE_EFFECTS_SKIPPED,
                    f"`{change.watched.use.text}` changes with every call; a replay runs no Python "
                    "and does not change it",
                    (change.watched.frame,),
                    evidence=(change.text,),
                    severity=WARNING,
                )


def _each_change_once(
    findings: Iterable[Finding], assigned: Mapping[str, Frames]
) -> Iterator[Finding]:
    """Of the lines that read what is changed at one line, that line itself, or else the first,
    preferably of those that name it. If the change is in ``assigned``, the finding is there."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.evidence[1:], []).append(finding)
    for changed, group in groups.items():
        places = [_place(finding) for finding in group]
        starts = [_place(finding, of_statement=True) for finding in group]
        changing = [
            place
            for place, start in zip(places, starts, strict=True)
            if any(text.endswith(f" {start}") for text in changed)
        ]
        naming = [place for place, finding in zip(places, group, strict=True) if _is_named(finding)]
        at = (changing or naming or places)[0]
        others = list(dict.fromkeys(each for each in places if each != at))[:_SHOWN_CHANGES]
        assigning = assigned.get(changed[0], ()) if len(changed) == 1 and not changing else ()
        if assigning:
            first = group[places.index(at)]
            read = f"read at {', '.join((at, *others))}"
            yield replace(
                first,
                frames=assigning,
                columns=None,
                module=None,
                forward=(),
                evidence=(*first.evidence[:1], read),
            )
            continue
        also = (f"also read at {', '.join(others)}",) if changed and others else ()
        for finding, place in zip(group, places, strict=True):
            if not changed or place == at:
                yield replace(finding, evidence=(*finding.evidence, *also))


def _is_named(finding: Finding) -> bool:
    """Whether the line of a finding has the name that its reason begins with."""
    _, *name = finding.reason.split("`", 2)
    return len(name) == 2 and any(
        name[0] in linecache.getline(frame.file, frame.line) for frame in finding.frames[:1]
    )


def _place(finding: Finding, *, of_statement: bool = False) -> str:
    if not finding.frames:
        return ""
    file, line = finding.frames[0].file, finding.frames[0].line
    return f"{Path(file).name}:{statement_start(file, line) if of_statement else line}"


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
    """What to do about a number that changes, if ``op`` takes no tensor in its place; else None.
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
