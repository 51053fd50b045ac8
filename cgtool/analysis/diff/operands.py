"""Which tensors an op of one capture reads that the same op of another capture does not.

A tensor is known by what wrote it, or by its name if nothing in the graph did: never by the number
of its storage. Where what wrote it was removed or added, that is the change, and not what reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from cgtool.analysis.diff.pairing import Pair, Pairing
from cgtool.model.capture import Call, Capture, Graph

_Source = int | str | None
"""The id of the first node of the call that wrote a tensor; or the tensor's name; None if neither
is known."""


class OperandChange(NamedTuple):
    """An operand that is another tensor than before: ids of nodes, or names."""

    name: str
    """Of the argument."""
    a: int | str
    b: int | str


class _Operands:
    """The operands of one graph's calls, by the first node of the call."""

    def __init__(self, capture: Capture, graph: Graph) -> None:
        self._lists = capture.argument_lists
        self._calls = graph.calls
        self.names = {tensor.name for tensor in capture.memory.tensors}
        self.first_node: dict[int, int] = {}
        """By number of the call."""
        for node in graph.nodes:
            if node.call is not None:
                self.first_node.setdefault(node.call, node.id)
        self._call_of = {node: call for call, node in self.first_node.items()}
        writer: dict[int, _Source] = {
            tensor.storage: tensor.name
            for tensor in reversed(capture.memory.tensors)
            if tensor.storage is not None
        }
        self._sources: list[tuple[_Source, ...]] = []
        for number, call in enumerate(graph.calls):
            self._sources.append(tuple(map(writer.get, call.operands)))
            writer |= dict.fromkeys(call.writes, self.first_node.get(number))

    def call(self, node: int) -> Call | None:
        """The call whose first node this is."""
        number = self._call_of.get(node)
        return None if number is None else self._calls[number]

    def sources(self, node: int) -> Sequence[_Source]:
        return self._sources[self._call_of[node]]

    def argument_names(self, call: Call) -> list[str]:
        """Of each operand."""
        names: list[str] = []
        for argument in self._lists[call.arguments].arguments if call.arguments is not None else ():
            names += [argument.name] * min(argument.operands, len(call.operands) - len(names))
        return names


def changed_operands(
    a: Capture, b: Capture, before: Graph, after: Graph, nodes: Pairing
) -> dict[Pair, list[OperandChange]]:
    """Matched nodes, each the first of its op call, whose op reads other tensors. Linear in nodes
    and operands."""
    if not (a.argument_lists and b.argument_lists):
        return {}
    ours, theirs = _Operands(a, before), _Operands(b, after)
    partner = dict(chain(nodes.same, nodes.alike, nodes.moved))
    partner_of_b = {right: left for left, right in partner.items()}

    def differ(left: _Source, right: _Source) -> bool:
        if left is None or right is None:
            return False
        if isinstance(left, str) and isinstance(right, str):
            # A name that only one side has is that of a renamed module.
            return left != right and left in theirs.names and right in ours.names
        known = isinstance(left, str) or left in partner
        known = known and (isinstance(right, str) or right in partner_of_b)
        return known and (isinstance(left, str) or partner[left] != right)

    changes: dict[Pair, list[OperandChange]] = {}
    for pair in chain(nodes.same, nodes.alike):
        call, other = ours.call(pair[0]), theirs.call(pair[1])
        if call is None or other is None:
            continue
        names = ours.argument_names(call)
        if names != theirs.argument_names(other):
            continue
        differences = [
            OperandChange(name, left, right)
            for name, left, right in zip(
                names, ours.sources(pair[0]), theirs.sources(pair[1]), strict=False
            )
            if left is not None and right is not None and differ(left, right)
        ]
        if differences:
            changes[pair] = differences
    return changes
