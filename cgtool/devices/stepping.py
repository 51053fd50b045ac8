"""A captured graph that runs one node at a time, on either device, and the orders that its edges
allow."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from cgtool.devices.values import values_of
from cgtool.model.capture import TensorValues
from cgtool.observe.access import described
from cgtool.observe.effects import effect_of, launches, written_by
from cgtool.observe.ops import OpCall
from cgtool.observe.raw_tensors import spoil
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import schema_of
from cgtool.torch_compat.storages import extent

Edges = Sequence[tuple[int, int]]
"""(node, node that waits for it)."""


class StepFailedError(Exception):
    """A node failed; the device cannot be used afterwards."""

    def __init__(
        self, stepper: Stepper, node: int, error: Exception, inside: tuple[int, ...] = ()
    ) -> None:
        """``stepper``: of its graph; ``node``: its index there; ``inside``: of the node that fails
        in its body, and so on; ``error``: of the device."""
        super().__init__(f"node {node}: {error}")
        self.stepper = stepper
        self.node = node
        self.inside = inside
        self.error = error


class SteppedOp(NamedTuple):
    """An op of a capture that launches work."""

    call: OpCall
    node: int | None
    """Its last node; None if it has none of its own."""
    shapes: tuple[tuple[int, ...], ...]
    """Of what it writes."""
    scalars: Mapping[str, str] = MappingProxyType({})
    """Its arguments that a graph keeps as they were, as texts."""


class Stepper(ABC):
    """One graph whose nodes are launched alone, each after the one before has ended."""

    count: int
    """Nodes."""
    edges: Edges
    ops: Sequence[SteppedOp] = ()
    """The ops that launch work, in the order in which they ran."""

    def __init__(self) -> None:
        self.now: int | None = None
        """The node that runs."""
        self.runs = 0
        """Nodes that were run."""
        self.whole: dict[int, str] = {}
        """Nodes that are launched together with others, each with the reason."""

    def run(self, node: int) -> None:
        """Launch a node, and wait for it. Raises StepFailedError."""
        self.now = node
        self.runs += 1
        try:
            self._launch(node)
        except StepFailedError as error:
            inside = (error.node, *error.inside)
            raise StepFailedError(self, node, error.error, inside) from error
        except (IndexError, RuntimeError) as error:
            raise StepFailedError(self, node, error) from error
        finally:
            self.now = None

    @abstractmethod
    def _launch(self, node: int) -> None:
        """Raises StepFailedError for a node of its body; else what the device raises."""

    @abstractmethod
    def clear(self) -> None:
        """Fill with zeros what nodes compute and no one else holds: what an earlier run has left
        there is as right as what this one computes."""

    def written(self, node: int) -> list[tuple[str, torch.Tensor]]:
        """What the op has written whose last node this is, each with a name; to be read before the
        next node runs, which may use the memory for something else. None of it is kept alive."""
        return []

    def values(self, node: int) -> tuple[TensorValues, ...]:
        """The figures of what is ``written``."""
        return values_of(self.written(node))

    def given(self, node: int) -> list[tuple[str, torch.Tensor]]:
        """The arguments of the op that a node is of, as ``named_arguments``; what is there now."""
        return []

    def first(self, node: int) -> int:
        """The first node of the op whose last node this is."""
        return node

    def spoil(self, node: int) -> list[str]:
        """Fill what the op computes whose last node this is with ``UNUSUAL`` bytes, to see whether
        it does; to be called before its first node. What it is given keeps its values. Returns the
        names."""
        given = [_span(tensor) for _, tensor in self.given(node)]
        names = []
        for name, tensor in self.written(node):
            begin, end = _span(tensor)
            if not any(start < end and begin < stop for start, stop in given):
                spoil(tensor)
                names.append(name)
        return names

    @property
    def moves_generators(self) -> bool:
        """Whether nodes draw the random numbers that a replay would."""
        return True

    def running(self) -> AbstractContextManager[object]:
        """To be entered while nodes run."""
        return contextlib.nullcontext()

    def step(self, order: Sequence[int] | None = None) -> None:
        """Run all nodes, in the order of capture or in another one that the edges allow."""
        with self.running():
            for node in range(self.count) if order is None else order:
                self.run(node)

    def has_branches(self) -> bool:
        """Whether the edges allow another order than that of capture."""
        chain = {(node, node + 1) for node in range(self.count - 1)}
        return not chain <= set(self.edges)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + extent(tensor.shape, tensor.stride()) * tensor.element_size()


def launched_results(
    name: str, func: Any, args: Args, kwargs: Kwargs, results: Any
) -> list[tuple[str, torch.Tensor]] | None:
    """The tensors that an op has written, each once: its results, then arguments. None for an op
    that launches no work for the device."""
    made = [*tensors_in(results)]
    given = [*tensors_in((args, kwargs))]
    if effect_of(func).view or name.startswith("profiler::") or not launches(name, made or given):
        return None
    named = [("out" if not at else f"out{at}", each) for at, each in enumerate(made)]
    for tensor in written_by(func, args, kwargs):
        place = next((at for at, each in enumerate(given) if each is tensor), 0)
        named.append((f"in{place}", tensor))
    seen: dict[tuple[int | None, int], tuple[str, torch.Tensor]] = {}
    for label, tensor in named:
        if tensor.layout == torch.strided and not tensor.is_nested and tensor.numel():
            seen.setdefault((key_of(tensor), tensor.data_ptr()), (label, tensor))
    return list(seen.values())


def named_arguments(func: Any, args: Args, kwargs: Kwargs) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that an op is given: ``in0``, ``in1``, ..., and each by its name in the op's
    schema; of a list, with its place (``tensors0``)."""
    for place, tensor in enumerate(tensors_in((args, kwargs))):
        yield f"in{place}", tensor
    schema = schema_of(func)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((f"{name}{place}", each) for place, each in enumerate(tensors_in(value)))


def named_scalars(func: Any, args: Args, kwargs: Kwargs) -> dict[str, str]:
    """The arguments of an op that are no tensors of the device, by their names in its schema."""
    schema = schema_of(func)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    texts = (
        (name, described(value))
        for name, value in (*zip(names, args, strict=False), *kwargs.items())
    )
    return {name: text for name, (text, operands) in texts if text and not operands}


def an_order(count: int, edges: Edges, choose: Callable[[int], int]) -> Iterator[int]:
    """An order of ``count`` nodes that the edges allow. ``choose(n)`` picks one of ``n`` nodes that
    may be next, of which the first has waited longest."""
    waits, then = [0] * count, [list[int]() for _ in range(count)]
    for source, target in edges:
        waits[target] += 1
        then[source].append(target)
    ready = [node for node in range(count) if not waits[node]]
    while ready:
        node = ready.pop(choose(len(ready)))
        yield node
        for target in then[node]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)


def moved_ahead(order: Sequence[int], place: int, after: int) -> list[int]:
    """An order between that of capture and another one: the first ``place`` nodes of that, then all
    others in the order of capture, but that the node at ``place`` runs when ``after`` of them have.
    If the edges allow the other order, they allow this one."""
    begun, node = order[:place], order[place]
    rest = sorted(set(order) - set(begun) - {node})
    return [*begun, *rest[:after], node, *rest[after:]]
