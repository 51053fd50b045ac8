"""Values of the host that a graph freezes: what changes from call to call and reaches an op, or
decides which ops run.

Where values go is read from the source (``observe.flow_reader``). So a value that two iterations
happen to share is found too: a counter whose thousandth step changes a rate, a branch that is
rarely taken. What the two iterations show to differ is an error, and what an op gets of a generator
that goes on from call to call; anything else is a warning.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from cgtool.detectors.reporting import with_names_of
from cgtool.findings import code
from cgtool.model.capture import Frame, Frames
from cgtool.model.finding import WARNING, Code, Finding
from cgtool.observe.effects import is_view
from cgtool.observe.expressions import names_of_next
from cgtool.observe.flow_reader import read_flows
from cgtool.observe.flows import Flows, Source, contains
from cgtool.observe.frames import Chain, frames_of, is_subscript, position_of
from cgtool.observe.host_reads import Change, HostReads, Watched
from cgtool.observe.host_values import runs_the_same
from cgtool.observe.iteration import Iteration
from cgtool.recapture.ops import COPIES
from cgtool.observe.ops import OpCall
from cgtool.observe.source import Position, conditions_around, statement_lines, text_at
from cgtool.observe.uses import changed_by
from cgtool.torch_compat.private import storage_address

CONTROL_FLOW_FROZEN = code("control-flow-frozen")
CPU_STATE_STEP_COUNTER = code("cpu-state-step-counter")
CPU_WORK_IN_REGION = code("cpu-work-in-region")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")
PYTHON_SIDE_EFFECTS_SKIPPED = code("python-side-effects-skipped")
RNG_FROZEN_SEED = code("rng-frozen-seed")

_DRAWS = {
    "random": (RNG_FROZEN_SEED, "a random number drawn on the host"),
    "clock": (CPU_WORK_IN_REGION, "the time"),
    "file": (CPU_WORK_IN_REGION, "what is read from a file"),
    "database": (CPU_WORK_IN_REGION, "what is read from a database"),
    "host": (CPU_WORK_IN_REGION, "a value that other code on the host changes"),
    "version": (
        PYTHON_SCALAR_FROZEN,
        "the version of an input, which changes when that is refilled,",
    ),
    "copied": (CPU_WORK_IN_REGION, "a value that the device copies to the host"),
}
"""For calls whose result is never the same: the code, and the value in words."""


_REPEATS = "reaches {target}: every replay repeats the value of the capture"
_VALUES = {
    "random": (RNG_FROZEN_SEED, f"a random number drawn on the host {_REPEATS}"),
    "host tensor": (CPU_WORK_IN_REGION, f"{{name}} is computed on the host and {_REPEATS}"),
    "container": (
        PYTHON_SIDE_EFFECTS_SKIPPED,
        "{name} changes with every call and reaches {target}; a replay does not change it",
    ),
    "number": (
        CPU_STATE_STEP_COUNTER,
        "{name} changes on the host with every call and reaches {target}; a replay does not change "
        "it",
    ),
}
"""By kind of a value: the code, and why; a container or a number is named where the code writes it,
the others where it reads them."""
_OTHER = (
    PYTHON_SCALAR_FROZEN,
    "{name} changes from call to call and reaches {target}; a graph keeps the value of the capture",
)


_ITERATOR = (
    PYTHON_SIDE_EFFECTS_SKIPPED,
    "{name} moves on with every call, and what it returns reaches {target}; a replay does not move "
    "it on",
)
_FIX_OF_ITERATOR = (
    "take the next item outside the captured code, and `copy_()` it into a static tensor before "
    "each replay"
)

_FIX_OF_CONTAINER = (
    "keep its numbers in a tensor on the device and select with a tensor of positions, or take the "
    "number outside the captured code and `fill_()` a static tensor with it before each replay"
)
_FIX_OF_CHOICE = (
    "copy the tensor that is wanted into a static one before each replay, or stack them and select "
    "with a tensor of positions on the device"
)
_FIX_OF_POSITION = (
    "keep the position in a tensor on the device, advance it in place in the captured code, and "
    "use it with `index_select` or `index_copy_`: the bounds of a slice are numbers on the host"
)
_FIX_OF_VERSION = (
    "compute what depends on the input in every call, or outside the captured code whenever the "
    "input has changed"
)
_FIX_OF_DRAW = (
    "draw on the device (`torch.rand((), device=...) < p`) and select with `torch.where`, or "
    "capture one graph for each outcome and choose between them in Python"
)
_FIX_OF_LOOP = (
    "keep the order in a tensor on the device and select with it, or capture one graph for each "
    "order or length and choose between them in Python"
)
_FIX_OF_CONTENTS = (
    "change it outside the captured code, before the capture, and capture again whenever it has "
    "changed"
)


_Line = tuple[Code, str, int]
"""A code, a file and a line."""


class FrozenValues:
    """What changes on the host between iterations, and where it goes."""

    def __init__(
        self,
        first: Iteration,
        second: Iteration,
        reads: HostReads,
        changes: Sequence[Change],
        flows: Flows | None = None,
    ) -> None:
        """``flows``: where the values of the second iteration go, if that is known."""
        self.first, self.second, self.reads = first, second, reads
        self.flows = flows or read_flows(second.ran, reads)
        self.changes: dict[Source, Change] = {}
        for change in changes:
            is_kept = change.after.kind == "tensor" or self._is_filled(change)
            if change.watched.key is not None and not is_kept:
                self.changes.setdefault(Source("state", change.watched.key), change)
        by_others = {
            Source(kind, key)
            for key in reads.written_by_others(second.ran.serving)
            for kind in ("state", "kept")
        }
        drawn = [
            Source(kind, position)
            for position, kind in second.ran.drawn.items()
            if kind != "read"
            and (
                position not in second.generators
                or second.generators[position] != first.generators.get(position)
            )
            and not second.is_answer(position, first)
        ]
        # What changed in a container is named before the container.
        changed = sorted(
            self.changes, key=lambda each: self.changes[each].after.kind == "container"
        )
        # What is read from the device is reported where it is read.
        read = [Source("read", position) for position in second.ran.reads]
        first_of_all = dict.fromkeys([*drawn, *changed, *by_others, *read])
        alike = {
            source: None
            for source, change in self.changes.items()
            if runs_the_same(change.before, change.after)
        }
        differing = [source for source in first_of_all if source not in alike]
        known = self.flows.volatile(differing, self._spared)
        self._alike = alike.keys() - known.keys()
        """Functions and modules that are replaced by others that run the same code, made from
        nothing that changes: what differs in them has names of its own."""
        first_of_all = dict.fromkeys([*differing, *(each for each in alike if each not in known)])
        self.causes = self.flows.volatile(first_of_all, self._spared) if alike else known
        """Sources whose values change, each with the first one behind it."""
        self._rank = {source: number for number, source in enumerate(first_of_all)}
        self.observed: dict[Position, str] = {}
        """Expressions and conditions that the two iterations show to differ, and how."""
        self._chooses: set[Position] = set()
        """Conditions because of which the same op reads another tensor."""
        self._targets: dict[Position, str] = {}
        """The ops that get another tensor because of a value at these places."""
        self._got: dict[Position, str] = {}
        """The ops that get another number at these places."""
        self._fixes: dict[Position, str | None] = {}
        """What to do about the numbers among them, where that is not what the page says."""
        self._replaced: set[Source] = set()
        """Objects whose tensors ops read, and that are reported there."""

    def _is_filled(self, change: Change) -> bool:
        """Whether a tensor on the host changes because copies of the device fill it."""
        value = change.watched.look_up() if change.after.kind == "host tensor" else None
        return isinstance(value, torch.Tensor) and storage_address(value) in self.second.filled

    def _spared(self, state: Source, key: str) -> bool:
        change = self.changes.get(state)
        return change is not None and change.spares(key)

    def _changing(self, kind: str, key: object) -> list[Source]:
        """The changing sources that reach a fact, in the order of what is behind them."""
        sources = self.flows.facts.get((kind, key), set())
        changing = [source for source in sources if source in self.causes]
        return sorted(changing, key=lambda source: self._rank[self.causes[source]])

    def _reported(self, kind: str, key: object) -> list[Source]:
        """Those of them that are to be reported: not what is read from the device, which is refused
        where it is read, nor an item of a container whose change is reported."""
        spared = self._replaced if key in self.observed else self._replaced | self._alike
        changing = [
            source
            for source in self._changing(kind, key)
            if self.causes[source].kind != "read" and self.causes[source] not in spared
        ]
        causes = {self.causes[source] for source in changing}
        written = {each.key for each in self.reads.watched if each.use.written}
        changed = {cause.key for cause in causes if cause in self.changes and cause.key in written}
        changed |= self._replaced_objects
        return [
            source
            for source in changing
            if self.causes[source].key in written
            or not any(
                changed.intersection(each.prefixes) for each in self._watched(self.causes[source])
            )
        ]

    @functools.cached_property
    def _replaced_objects(self) -> set[Any]:
        """The keys of what the code replaces by another object, and that reaches an op itself: what
        it reads of one (`self.beat.denominator`) follows from that."""
        written = {each.key for each in self.reads.watched if each.use.written}
        causes = {
            self.causes[source]
            for (kind, _), sources in self.flows.facts.items()
            if kind == "op"
            for source in sources
            if source in self.causes and self.causes[source] in self.changes
        }
        return {
            cause.key
            for cause in causes
            if cause.key in written and self.changes[cause].after.kind == "number"
        }

    def reaching(self) -> dict[Any, Code]:
        """The keys of all state that reaches an op or decides which ops run, whether it changes or
        not, each with what a change of it would mean."""
        decisions, numbers = self._used()
        reached = dict.fromkeys(self.flows.behind(decisions), CONTROL_FLOW_FROZEN)
        reached |= dict.fromkeys(self.flows.behind(numbers), PYTHON_SCALAR_FROZEN)
        states = (source for source in reached if source.kind == "state")
        return {source.key: reached[source] for source in states}

    def changes_seeds(self) -> bool:
        """Whether a value that changes is the seed of a generator of random numbers."""
        return any(self._changing(*fact) for fact in self.flows.facts if fact[0] == "seed")

    def uses_reads(self) -> bool:
        """Whether a value that is read from the device reaches an op or decides which ops run."""
        decisions, numbers = self._used()
        return any(source.kind == "read" for source in self.flows.behind(decisions | numbers))

    def _used(self) -> tuple[set[Source], set[Source]]:
        """What decides which ops run, and what else reaches an op."""
        numbers: set[Source] = set()
        decisions: set[Source] = set()
        for (kind, key), sources in self.flows.facts.items():
            if kind == "decision" and self._decides_ops(key):
                decisions |= sources
            elif kind in ("op", "output"):
                deciding = {
                    each
                    for each in sources
                    if each.kind == "decision" and self._decides_ops(each.key, True)
                }
                decisions |= deciding
                numbers |= sources - deciding if kind == "op" else set()
        return decisions, numbers

    def explain_number(self, call: OpCall, evidence: str, fix: str | None) -> bool:
        """Whether a value that changes reaches this op, which gets another number in the second
        iteration; ``findings`` then reports it as an error, with ``fix``, if there is one, in place
        of the page's."""
        forward = self.second.record.forward_of(call)
        positions = [
            position_of(site) for each in (call, forward) if each for site in each.chain[:1]
        ]
        known = [position for position in positions if self._changing("op", position)]
        self.observed.update(dict.fromkeys(known, evidence))
        self._got.update(dict.fromkeys(known, call.name))
        self._fixes.update(dict.fromkeys(known, fix))
        return bool(known)

    def explain_branch(
        self, calls: Sequence[OpCall], evidence: str, *, of_tensors: bool = False
    ) -> bool:
        """Whether a condition decides between ops that the iterations run at the same point, or
        between the tensors that one reads (``of_tensors``); ``findings`` then reports it as an
        error."""
        forward = [self.second.record.forward_of(call) for call in calls]
        places = [position_of(site) for call in (*calls, *forward) if call for site in call.chain]
        deciding = [
            position
            for position, branch in self.flows.branches.items()
            if self._changing("decision", position)
            and any(contains(span, place) for span in branch.spans for place in places)
        ]
        self._observe_decisions(deciding, evidence, of_tensors=of_tensors)
        return bool(deciding)

    def _observe_decisions(
        self, deciding: Sequence[Position], evidence: str, *, of_tensors: bool
    ) -> None:
        self.observed.update(dict.fromkeys(deciding, evidence))
        self._chooses = self._chooses.union(deciding) if of_tensors else self._chooses - {*deciding}

    def explain_choice(self, call: OpCall, evidence: str) -> bool:
        """Whether a condition chooses between the tensors that this op reads, another one in the
        second iteration; ``findings`` then reports it as an error."""
        deciding = [
            source.key
            for site in call.chain[:1]
            for source in self._changing("op", position_of(site))
            if source.kind == "decision" and self._decides_ops(source.key, result_is_used=True)
        ]
        self._observe_decisions(deciding, evidence, of_tensors=True)
        return bool(deciding)

    def explain_address(self, call: OpCall, evidence: str) -> list[str] | None:
        """Whether a value that changes chooses the tensor that this op reads, another one in the
        second iteration; ``findings`` then reports it as an error. Returns the lines that change
        it, none for an iterator, or None if there is no such value."""
        forward = self.second.record.forward_of(call)
        positions = [
            position_of(site) for each in (call, forward) if each for site in each.chain[:1]
        ]
        known = {position: self._changing("op", position) for position in positions}
        sources = [source for position in positions for source in known[position]]
        changed = [
            self.changes[cause] for each in sources if (cause := self.causes[each]) in self.changes
        ]
        chosen = [each for each in changed if each.after.kind in ("number", "iterator")]
        if not chosen:
            return None
        for position in (position for position in positions if known[position]):
            self.observed.setdefault(position, evidence)
            self._targets.setdefault(position, call.name)
            self._fixes.setdefault(position, _FIX_OF_CHOICE)
        return self.changed_at(chosen)

    def explain_object(self, call: OpCall) -> list[Change]:
        """The objects (a module, a function) that are replaced by others, and whose tensors this op
        therefore reads; ``findings`` then does not report them."""
        forward = self.second.record.forward_of(call)
        chains = [[position_of(site) for site in each.chain] for each in (call, forward) if each]
        facts = [("op", chain[0]) for chain in chains if chain]
        facts += [
            ("decision", position)
            for position, branch in self.flows.branches.items()
            if branch.calls
            and any(
                contains(span, place) for span in branch.spans for place in itertools.chain(*chains)
            )
        ]
        causes = {self.causes[each] for fact in facts for each in self._changing(*fact)}
        changed = [self.changes[cause] for cause in causes if cause in self.changes]
        if len(changed) < len(causes) or any(each.after.kind != "function" for each in changed):
            return []
        self._replaced |= causes
        return changed

    def changed_at(self, changes: Sequence[Change]) -> list[str]:
        """The lines that change these values."""
        keys = [each.watched.key for each in changes]
        return list(
            dict.fromkeys(
                f"`{each.use.text}` is changed{each.use.by} at {each.frame.short}"
                for each in self.reads.watched
                if each.use.written and each.key in keys
            )
        )

    def findings(self) -> Iterator[Finding]:
        """Each value once, at the line to change."""
        reported: dict[_Line, Finding] = {}
        firsts: dict[Source, _Line] = {}
        for finding, cause in sorted(self._all(), key=lambda pair: pair[0].severity is not None):
            place = finding.frames[0] if finding.frames else Frame("", 0, "")
            line: _Line = finding.code, place.file, place.line
            if finding.fix == _FIX_OF_ITERATOR and cause is not None:
                line = firsts.setdefault(cause, line)
            known = reported.setdefault(line, finding)
            if known is finding:
                continue
            if line[1:] == (place.file, place.line):
                reported[line] = with_names_of(known, finding)
            else:
                evidence = dict.fromkeys((*known.evidence, f"also used at {place.short}"))
                reported[line] = replace(known, evidence=tuple(evidence))
        yield from reported.values()

    def _all(self) -> Iterator[tuple[Finding, Source | None]]:
        """With the value that is behind a finding."""
        calls: dict[Position, OpCall] = {}
        for op in self.second.ops:
            if not op.host and not op.in_optimizer and op.call.chain:
                position = position_of(op.call.chain[0])
                # What functions of PyTorch take of their arguments (`t` in `linear`) before they
                # compute: a finding names the op that computes.
                if position not in calls or is_view(calls[position].name):
                    calls[position] = op.call
        decisions: dict[Position, None] = {}
        modes: list[tuple[Source, Position]] = []
        found: set[Source] = set()
        for kind, key in self.flows.facts:
            changing = self._reported(kind, key)
            chosen = self._chosen_by(changing) if kind == "op" else {}
            for source in changing:
                is_branch = source.kind == "decision" and self._decides_ops(source.key, True)
                if kind in ("op", "output") and is_branch:
                    decisions[source.key] = None
                elif source in chosen:
                    decisions |= dict.fromkeys(chosen[source])
                elif kind == "mode":
                    modes.append((source, key))
                elif kind == "op":
                    call = calls.get(key)
                    is_filled = self.causes[source].kind == "copied"
                    if is_filled and call and call.name.startswith(COPIES):
                        # A copy of the graph reads what a copy of the graph has filled.
                        continue
                    chain, name = (call.chain, call.name) if call else ((), "an op")
                    name = self._targets.get(key) or self._got.get(key) or name
                    found.add(self.causes[source])
                    yield self._value(source, chain, name, key), self.causes[source]
                elif kind == "setting":
                    yield self._value(source, (), f"`{text_at(key)}`", key), self.causes[source]
            # The iterations may have run other ops for it.
            if kind == "decision" and changing and (key in self.observed or self._decides_ops(key)):
                decisions[key] = None
        for position in self._first_of(decisions):
            found.update(self.causes[source] for source in self._changing("decision", position))
            yield self._decision(position), None
        for source, position in modes:
            if self.causes[source] not in found:
                target = f"`{text_at(position)}`"
                yield self._value(source, (), target, position), self.causes[source]

    def _first_of(self, decisions: Iterable[Position]) -> list[Position]:
        """These conditions without those that depend only on others of them."""
        first = dict.fromkeys(decisions)
        for position in [*first]:
            del first[position]
            depends = bool(self._changing("decision", position))
            if position in self.observed or not (
                depends and self._follows(position, first, {position})
            ):
                first[position] = None
        return [each for each in decisions if each in first]

    def _follows(
        self, position: Position, others: Container[Position], known: set[Position]
    ) -> bool:
        """Whether a condition changes only with ``others``. ``known``: those that were asked."""
        for source in self._changing("decision", position):
            if source.kind != "decision":
                return False
            if source.key not in others and source.key not in known:
                known.add(source.key)
                if not self._follows(source.key, others, known):
                    return False
        return True

    def _chosen_by(self, sources: Sequence[Source]) -> dict[Source, list[Position]]:
        """For values that are kept: the conditions that decide which ops compute them, if what
        changes does nothing else to what an op gets."""
        chosen = {source: self._conditions_of(source) for source in sources}
        others = {self.causes[source] for source in sources if not chosen[source]}
        return {each: chosen[each] for each in sources if self.causes[each] not in others}

    def _conditions_of(self, source: Source) -> list[Position]:
        """The conditions that decide which ops compute a value; none if anything else of what
        changes goes into it."""
        positions: dict[Position, None] = {}
        known: set[Source] = set()
        waiting = [source]
        while waiting:
            each = waiting.pop()
            if each in known or each not in self.causes:
                continue
            known.add(each)
            if each.kind == "decision" and (
                self.flows.branches[each.key].reads or self._decides_ops(each.key, True)
            ):
                positions[each.key] = None
            elif each.kind == "decision":
                waiting += self._changing("decision", each.key)
            elif each.kind in ("state", "whole") and each not in self._rank:
                waiting += self.flows.sources_of("state", each.key)
            else:
                return []
        return [*positions]

    def _decides_ops(self, position: Position, result_is_used: bool = False) -> bool:
        """Whether a condition decides which ops run, and not only which numbers they get."""
        branch = self.flows.branches[position]
        ran = self.first.ran.around | self.second.ran.around
        return (
            branch.effects
            or (result_is_used and branch.selects)
            or any(contains(span, place) for span in branch.spans for place in ran)
        )

    def _chosen_at(self, position: Position) -> Position:
        """Of a call: the condition that chooses which function it calls."""
        seen = {position}
        while self.flows.branches[position].calls:
            sources = self._changing("decision", position)
            if any(source.kind != "decision" for source in sources) or sources[0].key in seen:
                break
            position = sources[0].key
            seen.add(position)
        return position

    def _decision(self, position: Position) -> Finding:
        shown, chooses = self.observed.get(position), position in self._chooses
        position = self._chosen_at(position)
        if shown is not None:
            self.observed.setdefault(position, shown)
        branch, sources = self.flows.branches[position], self._reported("decision", position)
        cause = next((self.causes[source] for source in sources), Source("state", None))
        frame = Frame(position[0], branch.line, branch.code.co_qualname)
        changed = self.changes.get(cause)
        evidence = [self.observed[position]] if position in self.observed else []
        if changed is not None:
            evidence.append(changed.text)
        if cause.kind == "copied":
            file, line, *_ = cause.key
            evidence.append(f"copied at {Path(file).name}:{line}, and nothing waits for the copy")
        if branch.loops and cause.kind == "random" and cause.key[1] != branch.line:
            return self._drawn(cause, "the order of a loop", evidence, position)
        what = f"`{changed.watched.use.text}`" if changed is not None else self._in_words(cause)
        fix = _FIX_OF_DRAW if cause.kind == "random" else None
        fix = _FIX_OF_LOOP if branch.loops else fix
        written = [] if changed is None else self._written(cause)
        if changed is not None and changed.after.kind == "container" and written:
            place = written[0].frame
            what = f"{what}, which {place.short} changes,"
            fix = _FIX_OF_CONTENTS
        decided, repeated = "which ops run here", "repeats the captured ops"
        if chooses:
            decided, repeated = "which tensors the ops read here", "reads those of the capture"
        return Finding(
            CONTROL_FLOW_FROZEN,
            f"{what} decides {decided}, and may change from call to call; a replay {repeated}",
            (frame, *self.callers_of(frame)),
            evidence=tuple(evidence),
            fix=fix,
            severity=None if position in self.observed else WARNING,
        )

    def _written(self, cause: Source) -> list[Watched]:
        """Where the code writes a value, by its key or by one that it computes, or an object that
        it is a field of, if nothing writes the field; a line that sets it back, or one that is not
        known to have run, if no other does."""
        key: tuple[Any, ...] = cause.key or ()
        computed = ("each", key[1]) if key[:1] == ("item",) else None
        return sorted(
            (
                each
                for each in self.reads.watched
                if each.use.written
                and each.key
                and (each.key == key[: len(each.key)] or each.key == computed)
            ),
            key=lambda each: (
                each.key not in (key, computed),
                each.use.resets,
                *self._may_not_run(each),
                each.key != key,
            ),
        )

    def _may_not_run(self, watched: Watched) -> tuple[bool, int]:
        """Whether a line calls a method that changes a container, but not in these iterations; and
        how many conditions it depends on."""
        file, used = watched.frame.file, watched.use.line
        lines = statement_lines(file, used)
        changing = self.first.ran.changing | self.second.ran.changing
        is_idle = bool(watched.use.method) and not any((file, line) in changing for line in lines)
        return is_idle, conditions_around(file, used)

    def _in_words(self, cause: Source) -> str:
        if cause.kind in _DRAWS:
            return _DRAWS[cause.kind][1]
        watched = self._watched(cause)
        return f"`{watched[0].use.text}`" if watched else "a value"

    def _watched(self, cause: Source) -> list[Watched]:
        return [watched for watched in self.reads.watched if watched.key == cause.key]

    def _drawn(
        self,
        cause: Source,
        target: str,
        evidence: Sequence[str],
        position: Position,
        reads: Sequence[Watched] = (),
        *,
        is_op: bool = False,
    ) -> Finding:
        """``reads``: where the value is read. ``is_op``: ``target`` is an op, which gets it."""
        code_name, words = _DRAWS[cause.kind]
        frame = self._frame_at(cause.key)
        read = next((each for each in reads if not each.use.written), None)
        if cause.kind == "copied" and read is not None:
            # The copy may be in the graph, what reads its result may not.
            evidence = *evidence, f"copied at {frame.short}"
            frame = Frame(read.frame.file, read.use.line, read.frame.function)
        return Finding(
            code_name,
            f"{words} reaches {target}: every replay repeats the value of the capture",
            (frame, *self.callers_of(frame)),
            evidence=tuple(evidence),
            fix=_FIX_OF_VERSION if cause.kind == "version" else self._fixes.get(position),
            severity=None
            if position in self.observed or (is_op and cause.key in self.second.drawn_on)
            else WARNING,
        )

    def _value(self, source: Source, chain: Chain, target: str, position: Position) -> Finding:
        """A value that changes and reaches an op."""
        cause = self.causes[source]
        evidence = [self.observed[position]] if position in self.observed else []
        at_op = frames_of(chain) or (self._frame_at(position),)
        used = f"used at {at_op[0].short}"
        if cause.kind in _DRAWS:
            if cause.kind != "copied" and cause.key[:2] != (at_op[0].file, at_op[0].line):
                evidence.append(used)
            reads = self._watched(source)
            return self._drawn(cause, target, evidence, position, reads, is_op=bool(chain))
        changed = self.changes.get(cause)
        watched = self._watched(cause)
        written = self._written(cause)
        kind = changed.after.kind if changed is not None else "number"
        if kind == "iterator":
            taken = [each.frame.short for each in watched if each.frame != at_op[0]]
            evidence += [f"it moves on at {place}" for place in taken[:1]]
        elif changed is not None:
            evidence.append(changed.text)
        name = f"`{(written or watched)[0].use.text}`" if watched else "a value"
        places = watched if kind in ("random", "host tensor") else written
        (code_name, reason), frame = _OTHER, at_op[0]
        if kind in _VALUES and places:
            (code_name, reason), frame = _VALUES[kind], places[0].frame
            if kind == "random":
                frame, others = self._draw_for(cause, position, frame)
                evidence += others
        fix = self._fixes.get(position)
        returns_tensors = position in self._targets or target.startswith(COPIES)
        if changed is not None and kind == "iterator":
            returns_tensors |= bool(changed.after.addresses) or any(
                map(self._takes_tensor, watched)
            )
        if kind == "iterator" and returns_tensors:
            (code_name, reason), fix = _ITERATOR, _FIX_OF_ITERATOR
        if (frame.file, frame.line) != (at_op[0].file, at_op[0].line):
            evidence.append(used)
        is_fraction = changed is not None and not isinstance(changed.after.content, int | str)
        is_counted = fix is None and code_name == CPU_STATE_STEP_COUNTER
        if is_counted and is_fraction:
            changes_it = changed_by(places[0].frame.file, places[0].use.line) or "copy_"
            fix = (
                "keep it in a tensor on the device, and change that in place in the captured code "
                f"(`{changes_it}`), with tensor ops for what is computed from it"
            )
        elif is_counted and any(map(is_subscript, chain[:1])):
            fix = _FIX_OF_POSITION
        holds_numbers = (
            kind == "container" and changed is not None and not changed.after.has_tensors
        )
        if fix is None and code_name == PYTHON_SIDE_EFFECTS_SKIPPED and holds_numbers:
            fix = _FIX_OF_CONTAINER
        named = (written or watched)[:1]
        if any(each.frame.function != frame.function for each in named):
            name += f" of `{named[0].frame.function}`"
        return Finding(
            code_name,
            reason.format(name=name, target=target),
            at_op if frame == at_op[0] else (frame, *self.callers_of(frame)),
            evidence=tuple(evidence),
            fix=fix,
            severity=None if position in self.observed else WARNING,
        )

    def _takes_tensor(self, read: Watched) -> bool:
        """Whether a line binds the next item of an iterator, which is a tensor, to a name."""
        frame, ran = read.frame, self.second.ran
        names = names_of_next(frame.file, read.use.line)
        return any(
            not names.isdisjoint(ran.tensors.get(number, ()))
            for number, code in ran.codes.items()
            if (code.co_filename, code.co_qualname) == (frame.file, frame.function)
        )

    def _draw_for(self, cause: Source, position: Position, first: Frame) -> tuple[Frame, list[str]]:
        """Where a generator draws what an op gets: in the op's own lines, or at any of its draws,
        which are named then."""
        draws = dict.fromkeys(
            watched.frame
            for watched in self.reads.watched
            if watched.use.called and cause.key in watched.prefixes
        )
        file, start, _, end, _ = position
        for frame in draws:
            if frame.file == file and start <= frame.line <= end:
                return frame, []
        others = [frame for frame in draws if frame.line != first.line or frame.file != first.file]
        return first, [f"also drawn at {frame.short}" for frame in others]

    def _frame_at(self, position: Position) -> Frame:
        """The innermost function that ran around a position."""
        around = [
            code_object
            for code_object in self.second.ran.codes.values()
            if code_object.co_filename == position[0] and code_object.co_firstlineno <= position[1]
        ]
        name = max(around, key=lambda each: each.co_firstlineno).co_qualname if around else ""
        return Frame(position[0], position[1], name)

    def callers_of(self, frame: Frame) -> Frames:
        """The callers of the function that ``frame`` is in, as an op in it saw them."""
        for op in self.second.ops:
            functions = [(site[0].co_filename, site[0].co_qualname) for site in op.call.chain]
            if (frame.file, frame.function) in functions:
                return frames_of(op.call.chain)[functions.index((frame.file, frame.function)) + 1 :]
        return ()
