"""The evidence of trials, as plain data: values before and after replays and eager runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cgtool.model.finding import Finding
from cgtool.observe.raw_tensors import is_finite

Key = tuple[str, str]
"""(kind, name) of a tensor; the kind is ``output``, ``gradient`` or ``state``."""
Results = dict[Key, torch.Tensor]
Writes = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Static tensors and new values for them."""


@dataclass(frozen=True)
class Trial:
    """The start and the length of a run."""

    name: str
    iterations: int = 1
    writes: Sequence[Writes] = ()
    """Values written before each iteration. If it has fewer items than the trial has iterations,
    the other iterations begin with what the previous one left."""
    means: str = ""
    """A description of the trial, for the report."""
    order: Callable[[Sequence[Any]], Sequence[Any]] = list
    """The order in which the graphs are replayed."""
    seed: int | None = None
    """Seed of the random generators; None for the state in which the capture began."""
    changes: tuple[str, ...] = ()
    """The names of the inputs that get new values before each iteration."""

    def iteration(self, number: int) -> str:
        """The name of iteration ``number`` (from 0) in the table."""
        return self.name if self.iterations == 1 else f"{self.name}, replay {number + 1}"


@dataclass(frozen=True)
class Iteration:
    """Values before and after an iteration. State without a changed bit is the same object
    in both."""

    before: Mapping[Key, torch.Tensor]
    """State by the names that it has afterwards, as the trial began or as an input was written."""
    after: Mapping[Key, torch.Tensor]
    """Outputs, gradients and state."""

    def changed(self) -> Results:
        """Outputs and gradients, and the state that the iteration changed."""
        return {
            key: tensor for key, tensor in self.after.items() if self.before.get(key) is not tensor
        }


@dataclass(frozen=True)
class Run:
    """Consecutive eager iterations, or as many replays."""

    iterations: tuple[Iteration, ...]
    unwritten: tuple[Key, ...] = ()
    """Results that still have the sentinel after the first replay."""

    def first_not_finite(self) -> int | None:
        """The first iteration that left a NaN or an infinity; None for none."""
        for number, iteration in enumerate(self.iterations):
            if not all(map(is_finite, iteration.changed().values())):
                return number
        return None


@dataclass(frozen=True)
class EagerFacts:
    """Facts about eager itself, from the trials so far."""

    differs: bool = False
    """Eager differs from itself."""
    frozen: tuple[Finding, ...] = ()
    """The numbers that the host changes from run to run: then eager does not differ by chance."""
    random: frozenset[Key] = frozenset()
    """Random results for which a replay draws other numbers of the same distribution."""
    unwritten: frozenset[Key] = frozenset()
    """Results that no replay writes, although the capture is right."""
    counts: frozenset[Key] = frozenset()
    """State that is changed on the host, and that no op uses."""

    @property
    def is_noisy(self) -> bool:
        """Eager differs from itself by chance."""
        return self.differs and not self.frozen


@dataclass(frozen=True)
class Evidence:
    """The runs of one trial, and facts about eager."""

    trial: Trial
    eager: tuple[Run, ...]
    replay: Run
    facts: EagerFacts
    may_round: bool = False
    """The replay may round differently from eager: it may run other kernels, or eager is noisy."""
    float64: Run | None = None
    """The eager run in float64, to judge that by."""
