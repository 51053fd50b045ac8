"""Nodes of a simulated graph, run one at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import chain, pairwise
from typing import Any

import torch

from cgtool.devices.simulated.graph import SimulatedGraph, Step
from cgtool.devices.stepping import (
    SteppedOp,
    Stepper,
    launched_results,
    named_arguments,
    named_scalars,
)
from cgtool.observe.effects import effect_of
from cgtool.observe.raw_tensors import raw
from cgtool.observe.tensors import is_emptied, strided_parts


class SimulatedStepper(Stepper):
    """The steps of a simulated graph, each with those before it that are no node."""

    def __init__(self, graph: SimulatedGraph) -> None:
        super().__init__()
        self._graph = graph
        calls = [id(node.call) for node in graph.nodes]
        self.count = len(calls)
        self._steps: list[list[Step]] = [[]]
        for step in graph.steps:
            self._steps[-1].append(step)
            place = len(self._steps) - 1
            if place < self.count and step.call is not None and id(step.call) == calls[place]:
                self._steps.append([])
        node_of = {call: node for node, call in enumerate(calls)}
        self.ops = [
            SteppedOp(
                step.call,
                node_of.get(id(step.call)),
                tuple(tuple(tensor.shape) for _, tensor in results),
                named_scalars(step.func, step.args, step.kwargs),
            )
            for step in graph.steps
            if step.call is not None and (results := _results(step))
        ]
        # The generator of the CPU gives numbers in the order in which it is asked.
        drawing = [node for node in range(self.count) if any(map(_draws, self._steps[node]))]
        self.edges = [
            *((source, node) for node in range(self.count)
              for source in graph.nodes[node].dependencies),
            *pairwise(drawing),
        ]  # fmt: skip

    def running(self) -> AbstractContextManager[object]:
        return self._graph.running()

    def clear(self) -> None:
        made = [
            part
            for step in self._graph.steps
            if step.call is not None and not effect_of(step.func).writes
            for result in step.results
            for _, part in strided_parts(result)
        ]
        with raw():
            for tensor in made:
                if not is_emptied(tensor):
                    tensor.zero_()

    def written(self, node: int) -> list[tuple[str, torch.Tensor]]:
        return _results(self._steps[node][-1]) or []

    def given(self, node: int) -> list[tuple[str, torch.Tensor]]:
        step = self._steps[node][-1]
        return list(named_arguments(step.func, step.args, step.kwargs))

    def _launch(self, node: int) -> None:
        rest = self._steps[self.count :] if node == self.count - 1 else []
        SimulatedGraph(steps=[*self._steps[node], *chain.from_iterable(rest)]).replay()


def _results(step: Step) -> list[tuple[str, torch.Tensor]] | None:
    name = "" if step.call is None else step.call.name
    return launched_results(name, step.func, step.args, step.kwargs, step.results)


def _draws(step: Step) -> bool:
    tags: Any = getattr(step.func, "tags", ())
    return step.call is None or torch.Tag.nondeterministic_seeded in tags
