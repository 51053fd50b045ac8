"""Runs captured code again, from other host state, and finds the state that makes it run other ops.

The ops of two iterations are compared first. Then the code runs again as it would later: with the
numbers that an iteration moves moved further, with other draws of the host's random generators, and
on another day. Where a run differs, the items of host state are set one after the other, until it
is known which of them make the difference: nothing is named that was not shown to matter.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from cgtool.model import clock
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import is_internal
from cgtool.program.progress import copy_of
from cgtool.recapture.compare import Difference, first_difference
from cgtool.recapture.contained import (
    Clock,
    Stopped,
    UndoingRecorder,
    contained,
    most_ops_after,
    times_now,
)
from cgtool.recapture.host_state import HostState, Item, Reading
from cgtool.recapture.iteration import Iteration, observe
from cgtool.torch_compat.patches import Patches

_SECONDS = 20.0
"""For all runs of an experiment."""
_SECONDS_OF_RUN = 5.0
_MOST_FINDINGS = 8
_FURTHER = (50, 300, 1000, 20_000, 1_000_000)
"""By how many steps of an iteration numbers are moved further."""
_MULTIPLE = 72_072_000
"""A multiple of all small numbers: what happens every so many steps happens at this one."""
_POWERS = (10, 100, 1000, 10_000, 100_000)
_MOST_CONSTANTS = 12
_MOST_STEPS = 2000
"""Limit for the steps of an iterator, and for iterations that follow each other."""
_SECONDS_OF_WALK = 1.0
_LATER_DAY = 1.4321987
"""Days from now, at another time of the day."""
_SEEDS = 16
_EXTREMES = (2**-40, 1 - 2**-24)
"""A number that is hardly ever drawn, at each end."""
_MOST_DRAWS = 100_000
"""Limit for the draws of one of these: code that draws until it has another one never ends."""
_MOVABLE = frozenset(
    (
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
)
"""Data types of CPU tensors, and of arrays, whose numbers are moved further."""
_ORDER = ("random", "number", "value", "iterator", "tensor", "container", "object")
"""Kinds of items; what comes first is tried first."""
_MADE_ONCE = ("container", "object", "value")
"""Kinds of items that a warm-up sets: what is filled, or is not None any more."""


@dataclass(frozen=True)
class Caused:
    """A difference between two runs, and what makes it."""

    difference: Difference
    items: tuple[Item, ...]
    """The host state that was shown to make it; none if nothing that can be set back does."""
    second: Iteration
    """The run that differs."""
    trial: str
    """``next``: two iterations differ; ``later``: with numbers moved further; ``draws``: with other
    random numbers; ``clock``: on another day."""


@dataclass
class Outcome:
    """The result of an experiment."""

    first: Iteration
    second: Iteration
    """The two iterations that were compared."""
    caused: list[Caused] = field(default_factory=list)
    moved: list[tuple[Item, Item]] = field(default_factory=list)
    """Containers that have changed in both iterations, each with both changes."""
    codes: list[types.CodeType] = field(default_factory=list)
    """Code objects of the functions that the code can reach."""
    limits: list[str] = field(default_factory=list)
    """Why less was tried than could have been."""


class Experiment:
    """One piece of code, the host state that it can reach, and runs of it."""

    def __init__(
        self,
        run: Callable[[], Any],
        state: HostState | None,
        roots: Any,
        annotations: Annotations,
        inputs: set[int],
    ) -> None:
        """``inputs``: the storages of the callables' arguments, by key. Without ``state``,
        iterations are only compared."""
        self._run, self._state = run, state
        self._observed = roots, annotations, inputs
        self._end = clock.monotonic() + _SECONDS
        self._most_ops = sys.maxsize
        self._now = times_now()
        self._took = 0.0
        """Seconds of an iteration."""
        self._clock_reads = 0
        """How often the last run that had a ``Clock`` has read it."""

    def compare(self, *, later: bool = True) -> Outcome:
        """Compare two iterations, and try other draws; with ``later``, also run the code as it
        would run later."""
        state = self._state
        if state is None:
            return self._compare_only()
        before = state.read()
        first = self.iterate()
        between, began = state.read(), clock.monotonic()
        second = self.iterate()
        self._took = clock.monotonic() - began
        after = state.read()
        self._most_ops = most_ops_after(second)
        outcome = Outcome(first, second)
        try:
            difference = first_difference(first, second)
            if difference is not None:
                self._explain(outcome, before, between, difference)
            outcome.codes = state.codes()
            outcome.moved = _moved_twice(state, before, between, after)
            self._run_later(outcome, between, after, only_draws=not later)
        except Stopped as stopped:
            outcome.limits.append(str(stopped))
        finally:
            state.restore(after)
        return outcome

    def iterate(self) -> Iteration:
        """One iteration of which everything stays."""
        return observe(self._run, *self._observed)

    def rerun(
        self,
        reading: Reading | None,
        *,
        days: float | None = None,
        draws: float | None = None,
        seed: int | None = None,
    ) -> Iteration | None:
        """One more iteration from some host state, or, without one, from the present state; what it
        does to that stays, and nothing else. None if it raises.

        Raises Stopped when there is no time left.
        """
        left = self._end - clock.monotonic()
        if left <= 0:
            raise Stopped(f"runs from later host state, cut off after {_SECONDS:.0f} s")
        state = self._state
        assert state is not None
        recorders: list[UndoingRecorder] = []
        times: Clock | None = None

        def make(*observed: Any) -> UndoingRecorder:
            recorder = UndoingRecorder(*observed)
            recorder.most_ops = self._most_ops
            recorder.draws = draws
            recorders.append(recorder)
            return recorder

        if reading is not None:
            state.restore(reading)
        if seed is not None:
            state.seed(seed)
        try:
            with Patches() as patches:
                if days is not None:
                    times = Clock(patches, days, self._now)
                if draws is not None:
                    _draw_always(patches, draws)
                with contained(min(left, _SECONDS_OF_RUN)):
                    return observe(self._run, *self._observed, make, generation=1)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # With state that it never meets, code may do anything.
            return None
        finally:
            self._clock_reads = 0 if times is None else times.reads
            for recorder in recorders:
                recorder.undo()

    # --- two iterations

    def _compare_only(self) -> Outcome:
        first, second = self.iterate(), self.iterate()
        outcome = Outcome(first, second)
        self._settle(outcome, first_difference(first, second))
        return outcome

    def _settle(self, outcome: Outcome, difference: Difference | None) -> None:
        """Report a difference that no state explains. Another op may run because of a warm-up
        (TorchScript compiles a function in its second call): then two more iterations differ."""
        if difference is not None and difference.kind == "branch":
            iterations = [outcome.second, self.iterate(), self.iterate()]
            for pair in itertools.pairwise(iterations):
                outcome.first, outcome.second = pair
                difference = first_difference(*pair)
                if difference is None:
                    break
        if difference is not None:
            outcome.caused.append(Caused(difference, (), outcome.second, "next"))

    def _explain(
        self, outcome: Outcome, before: Reading, between: Reading, difference: Difference
    ) -> None:
        """Find the host state that makes two iterations differ, until none is left."""
        assert self._state is not None
        items = in_order(self._state.differences(before, between))
        base = self._repeatable(before)
        if base is None:
            days = self._repeatable(before, days=0.0), self.rerun(before, days=_LATER_DAY)
            if self._clock_reads and days[0] is not None and days[1] is not None:
                by_clock = first_difference(days[0], days[1])
                if by_clock is not None:
                    outcome.caused.append(Caused(by_clock, (), days[1], "clock"))
                    return
            self._settle(outcome, difference)
            return
        while len(outcome.caused) < _MOST_FINDINGS:
            other = self.rerun(before.with_items(between, items))
            found = _difference(base, other)
            if other is None or found is None:
                break
            shows = partial(self._differs, base, before, between, found.at)
            causes = minimal(items, shows)
            if not self._is_filled_once(found, causes, between):
                outcome.caused.append(Caused(found, tuple(causes), other, "next"))
            items = [item for item in items if item not in causes]
        if not outcome.caused:
            self._settle(outcome, difference)

    def _is_filled_once(
        self, difference: Difference, causes: Sequence[Item], between: Reading
    ) -> bool:
        """Whether other ops run because something was made that is there from then on: a cache, the
        state of an optimizer. Then the next two runs are the same."""
        if difference.kind != "branch" or any(i.kind not in _MADE_ONCE for i in causes):
            return False
        following = self.rerun(between), self.rerun(None)
        return following[0] is not None and _difference(following[0], following[1]) is None

    def _differs(
        self, base: Iteration, reading: Reading, other: Reading, at: int, items: Sequence[Item]
    ) -> bool:
        """Whether a run from ``reading`` with some items of ``other`` differs at op ``at``, or
        before."""
        again = self.rerun(reading.with_items(other, items))
        found = _difference(base, again)
        return found is not None and found.at <= at

    def _repeatable(self, reading: Reading, **options: Any) -> Iteration | None:
        """A run from some state, if a second one is the same."""
        first, second = self.rerun(reading, **options), self.rerun(reading, **options)
        if first is None or second is None or first_difference(first, second) is not None:
            return None
        return first

    # --- later iterations

    def _run_later(
        self, outcome: Outcome, between: Reading, after: Reading, *, only_draws: bool
    ) -> None:
        """``only_draws``: with other random numbers, and no other later state."""
        state = self._state
        assert state is not None
        known = {item.key for caused in outcome.caused for item in caused.items}
        items = [each for each in state.differences(between, after) if each.key not in known]
        numbers = [item for item in items if _is_movable(item)]
        draws = _draws(outcome.second, items) and not _is_known(outcome, "random")
        if only_draws:
            base = self._repeatable(after) if draws else None
            if base is not None:
                self._try_draws(outcome, base, after)
            return
        walks = bool(items) and self._took < _SECONDS_OF_WALK
        # Where it reads no clock, this is as good a run as any other.
        first = self.rerun(after, days=0.0)
        reads_clock = self._clock_reads > 0
        if first is None or not (numbers or draws or walks or reads_clock):
            return
        base = self._repeatable(after) if reads_clock else self.rerun(after)
        if base is None or (not reads_clock and _difference(first, base) is not None):
            return
        for values in self._later_values(outcome.second):
            if not numbers:
                break
            numbers = self._try_numbers(outcome, base, after, numbers, values)
        if draws:
            self._try_draws(outcome, base, after)
        if walks and not outcome.caused:
            self._walk(outcome, base, after)
        if reads_clock and not _has_trial(outcome, "clock"):
            later = self.rerun(after, days=_LATER_DAY)
            found = _difference(first, later)
            if later is not None and found is not None:
                outcome.caused.append(Caused(found, (), later, "clock"))

    def _later_values(self, iteration: Iteration) -> Iterator[Callable[[Item], Any]]:
        for steps in _FURTHER:
            yield partial(_moved, steps=steps)
        for constant in sorted({*_constants(iteration), *_POWERS}):
            for less in (0, 1):
                yield partial(_moved_to, number=constant, less=less)
        for less in (0, 1):
            yield partial(_moved_to, number=_MULTIPLE, less=less)

    def _try_numbers(
        self,
        outcome: Outcome,
        base: Iteration,
        after: Reading,
        numbers: list[Item],
        value_of: Callable[[Item], Any],
    ) -> list[Item]:
        """Run with other values of numbers; returns those of which nothing is known yet."""

        def run(items: Sequence[Item]) -> Iteration | None:
            again = self.rerun(after.with_numbers(items, [*map(value_of, items)]))
            if again is None or first_difference(base, again) is not None:
                return again
            # What it decides at its end shows in the next iteration.
            return self.rerun(None)

        def shows(at: int, items: Sequence[Item]) -> bool:
            again = run(items)
            found = _difference(base, again)
            return found is not None and found.at <= at

        while numbers and len(outcome.caused) < _MOST_FINDINGS:
            other = run(numbers)
            if other is None and len(numbers) > 1:
                # One that cannot be so far on its own may hide the others.
                return [n for n in numbers if not self._try_one(outcome, base, n, run)]
            found = _difference(base, other)
            if other is None or found is None:
                break
            causes = minimal(numbers, partial(shows, found.at))
            moved = tuple(_with_after(item, value_of(item)) for item in causes)
            outcome.caused.append(Caused(found, moved, other, "later"))
            numbers = [item for item in numbers if item not in causes]
        return numbers

    def _try_one(
        self,
        outcome: Outcome,
        base: Iteration,
        item: Item,
        run: Callable[[Sequence[Item]], Iteration | None],
    ) -> bool:
        other = run([item])
        found = _difference(base, other)
        if other is None or found is None:
            return False
        outcome.caused.append(Caused(found, (item,), other, "later"))
        return True

    def _walk(self, outcome: Outcome, base: Iteration, after: Reading) -> None:
        """Go on from call to call: what only many of them show."""
        assert self._state is not None
        self._state.restore(after)
        end = clock.monotonic() + _SECONDS_OF_WALK
        for _ in range(_MOST_STEPS):
            other = self.rerun(None)
            found = _difference(base, other)
            if other is not None and found is not None:
                outcome.caused.append(Caused(found, (), other, "later"))
            if found is not None or other is None or clock.monotonic() > end:
                return

    def _try_draws(self, outcome: Outcome, base: Iteration, after: Reading) -> None:
        runs: list[dict[str, Any]] = [{"draws": each} for each in _EXTREMES]
        runs += [{"seed": seed} for seed in range(_SEEDS)]
        for options in runs:
            other = self.rerun(after, **options)
            found = _difference(base, other)
            if other is not None and found is not None:
                outcome.caused.append(Caused(found, (), other, "draws"))
                return


def _difference(base: Iteration, other: Iteration | None) -> Difference | None:
    """None for a run that has raised, too."""
    return None if other is None else first_difference(base, other)


def minimal(items: Sequence[Item], shows: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Few of the items with which ``shows`` is still true, as it is with all of them."""
    needed: list[Item] = []
    rest = [*items]
    while rest:
        low, high = 0, len(rest)
        while low < high:
            middle = (low + high) // 2
            if shows([*needed, *rest[:middle]]):
                high = middle
            else:
                low = middle + 1
        if not low:
            break
        needed.append(rest[low - 1])
        rest = rest[: low - 1]
        if shows(needed):
            break
    return needed


def in_order(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda item: _ORDER.index(item.kind))


def _moved_twice(
    state: HostState, before: Reading, between: Reading, after: Reading
) -> list[tuple[Item, Item]]:
    first = {item.key: item for item in state.differences(before, between)}
    return [
        (first[item.key], item)
        for item in state.differences(between, after)
        if item.kind == "container" and item.key in first
    ]


def _is_movable(item: Item) -> bool:
    if item.kind != "tensor":
        return item.kind in ("number", "iterator")
    names = {str(each.dtype).removeprefix("torch.") for each in (item.before, item.after)}
    dtypes = {getattr(torch, name, None) for name in names}
    return len(dtypes) == 1 and dtypes <= _MOVABLE and item.before.shape == item.after.shape


def _value_and_step(item: Item) -> tuple[Any, Any]:
    """The value of an item, and by how much an iteration moves it; of an array as a tensor."""
    before, value = item.before, item.after
    if item.kind == "tensor" and not isinstance(value, torch.Tensor):
        before, value = map(torch.from_numpy, (before, value))
    return value, value - before


def _moved(item: Item, steps: int) -> Any:
    """Its value after so many more iterations."""
    if item.kind == "iterator":
        made = copy_of(item.after)
        for _ in itertools.islice(made, min(steps, _MOST_STEPS)):
            pass
        return made
    value, step = _value_and_step(item)
    moved = value + step * steps
    return type(value)(moved) if isinstance(value, int | float) else moved


def _moved_to(item: Item, number: int, less: int) -> Any:
    """A number that it has not reached yet, or what is one step before that."""
    if item.kind == "iterator":
        return item.after
    value, step = _value_and_step(item)
    target = number - step * less
    if isinstance(value, torch.Tensor):
        is_ahead = (target - value) * step > 0
        return torch.where(is_ahead, torch.zeros_like(value) + target, value)
    is_ahead = math.isfinite(step) and (target - value) * step > 0
    return type(value)(target) if is_ahead else value


def _with_after(item: Item, value: Any) -> Item:
    return Item(item.path, item.kind, item.after, value, item.key)


def _is_known(outcome: Outcome, kind: str) -> bool:
    return any(item.kind == kind for caused in outcome.caused for item in caused.items)


def _has_trial(outcome: Outcome, trial: str) -> bool:
    return any(caused.trial == trial for caused in outcome.caused)


def _draws(iteration: Iteration, items: Iterable[Item]) -> bool:
    """Whether the iteration draws random numbers on the host."""
    on_host = any(op.host and op.random for op in iteration.ops)
    return on_host or any(item.kind == "random" and item.key[1] != 1 for item in items)


def _constants(iteration: Iteration) -> list[int]:
    """Numbers in the code of the functions that ran."""
    waiting = [code for op in iteration.ops for code, _ in op.call.chain if not is_internal(code)]
    seen: set[int] = set()
    found: dict[int, None] = {}
    while waiting:
        code = waiting.pop()
        if id(code) in seen:
            continue
        seen.add(id(code))
        for constant in code.co_consts:
            if type(constant) is int and 2 < constant <= 10_000_000:
                found[constant] = None
            elif isinstance(constant, types.CodeType):
                waiting.append(constant)
    return sorted(found)[:_MOST_CONSTANTS]


def _draw_always(patches: Patches, value: float) -> None:
    """The functions of ``random`` and ``numpy.random`` return the lowest or the highest number."""
    low, left = value < 0.5, iter(range(_MOST_DRAWS))

    def drawn(number: Any) -> Any:
        if next(left, None) is None:
            raise Stopped("draws")
        return number

    patches.set(random, "random", lambda: drawn(value))
    patches.set(random, "getrandbits", lambda bits: drawn(0 if low else (1 << bits) - 1))
    # All others of the module are methods of a generator, which call these.
    patches.set(random.Random, "random", lambda _self: drawn(value))
    patches.set(random.Random, "_randbelow", lambda _self, n: drawn(0 if low else n - 1))
    patches.set(
        random.Random,
        "normalvariate",
        lambda _self, mu=0.0, sigma=1.0: mu + sigma * (-4.0 if low else 4.0),
    )
    if (numpy := sys.modules.get("numpy")) is None:
        return

    def of(shape: Any) -> Any:
        return value if shape is None or shape == () else numpy.full(shape, value)

    patches.set(numpy.random, "random", lambda size=None: of(size))
    patches.set(numpy.random, "rand", lambda *shape: of(shape))
    patches.set(
        numpy.random, "uniform", lambda low=0.0, high=1.0, size=None: low + of(size) * (high - low)
    )
    with contextlib.suppress(AttributeError):
        patches.set(
            numpy.random,
            "randint",
            lambda first, last=None, **_: (
                (first if last is not None else 0) if low else (last or first) - 1
            ),
        )
