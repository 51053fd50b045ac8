"""A graph as text that is equal for graphs that do the same.

A line is a node: what it does, and what it waits for unless that is only the line above. What a
node does is what `diff` compares (kernel, grid, block, shared memory, bytes), not where it comes
from (op, line, module, stream), and no address. On the simulated device, whose nodes are ops, it is
the op and its outputs.

The order of lines must not depend on the order in which nodes were created. So it follows from what
nodes do, and then from the nodes before and after them, again and again (color refinement).
What is alike in all that is interchangeable in graphs of programs, as equal branches of a fork are:
any of them comes first. In theory regular graphs have nodes that are alike and not interchangeable,
so their text may depend on the order of creation; equal texts always are equal graphs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from cgtool.analysis.graph.kernel_names import same_in_every_build, short_kernel
from cgtool.analysis.graph.places import NodeDescriber
from cgtool.model.capture import Node

Links = Sequence[Sequence[tuple[int, str]]]
"""By node: the nodes that it waits for, or that wait for it, and the kind of edge."""


def topology(describer: NodeDescriber, index: int) -> str:
    """The text of ``capture.graphs[index]``, with the graphs inside its nodes."""
    graph = describer.capture.graphs[index]
    labels = [_label(describer, node) for node in graph.nodes]
    before: list[list[tuple[int, str]]] = [[] for _ in labels]
    after: list[list[tuple[int, str]]] = [[] for _ in labels]
    for edge in graph.edges:
        before[edge.target].append((edge.source, edge.kind))
        after[edge.source].append((edge.target, edge.kind))
    order = _in_order(_ranks(labels, before, after), before, after)
    line_of = {node: at for at, node in enumerate(order)}
    waits = [sorted((line_of[source], kind) for source, kind in before[node]) for node in order]
    explicit = [at for at, each in enumerate(waits) if each != [(at - 1, "full")][: at > 0]]
    known = sorted({source for at in explicit for source, _ in waits[at]})
    names = {at: f"[{number}]" for number, at in enumerate(known, 1)}
    lines = [[names.get(at, ""), labels[node]] for at, node in enumerate(order)]
    for at in explicit:
        sources = (
            names[source] if kind == "full" else f"{names[source]} ({kind})"
            for source, kind in waits[at]
        )
        head, *inside = lines[at][1].split("\n")
        head += f"  after {', '.join(sources) or 'nothing'}"
        lines[at][1] = "\n".join((head, *inside))
    return "\n".join(" ".join(filter(None, line)) for line in lines)


def _label(describer: NodeDescriber, node: Node) -> str:
    """What a node does, and below that what its bodies do."""
    words = [node.type]
    if node.kernel is not None:
        name = same_in_every_build(describer.capture.functions[node.kernel.function].name)
        words.append(short_kernel(name))
        if words[-1] != name:
            words[-1] += f"#{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"
    elif node.copy is not None:
        words.append(node.copy.kind)
    elif node.type == "op":
        words = [describer.places.of(node).op or node.type]
    for field, value in describer.attributes(node):
        if field.compared:
            shown = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words.append(shown if field.name == "shape" else f"{field.name}={shown}")
    lines = [" ".join(words)]
    for number, body in enumerate(node.body, 1):
        lines.append(f"  body {number}")
        lines += (f"    {line}" for line in topology(describer, body).split("\n"))
    return "\n".join(lines)


def _ranks(labels: Sequence[str], before: Links, after: Links) -> list[int]:
    """A number for each node, the same in every order of creation but for interchangeable nodes.

    Cells of nodes that are alike so far are split by their edges from and to each new cell, of
    which the largest part is left out (Hopcroft): edges times the logarithm of the nodes.
    """
    cells: list[set[int]] = []
    ranks = [0] * len(labels)
    new: dict[int, None] = {}
    """Cells that others are still to be split by; the last one is next."""

    def add(nodes: Iterable[int]) -> int:
        cells.append(set(nodes))
        for node in cells[-1]:
            ranks[node] = len(cells) - 1
        return len(cells) - 1

    def refine() -> None:
        while new:
            meets: dict[int, list[tuple[bool, str]]] = defaultdict(list)
            for node in cells[new.popitem()[0]]:
                for links, is_after in ((after, True), (before, False)):
                    for other, kind in links[node]:
                        meets[other].append((is_after, kind))
            parts: dict[int, dict[tuple[tuple[bool, str], ...], list[int]]] = defaultdict(dict)
            for node, edges in meets.items():
                parts[ranks[node]].setdefault(tuple(sorted(edges)), []).append(node)
            for cell in sorted(parts):
                same = [parts[cell][edges] for edges in sorted(parts[cell])]
                if sum(map(len, same)) == len(cells[cell]):
                    same.pop(0)  # keeps the number of the cell
                cells[cell].difference_update(*same)
                split = [cell, *map(add, same)]
                if cell not in new:
                    split.remove(max(split, key=lambda each: len(cells[each])))
                new.update(dict.fromkeys(split))

    alike: dict[str, list[int]] = defaultdict(list)
    for node, label in enumerate(labels):
        alike[label].append(node)
    new.update((add(alike[label]), None) for label in sorted(alike))
    refine()
    for cell in cells:  # grows
        while len(cell) > 1:
            new[add((cell.pop(),))] = None
            refine()
    return ranks


def _in_order(ranks: Sequence[int], before: Links, after: Links) -> list[int]:
    """Each node after those that it waits for; a chain stays together."""
    missing = [len(sources) for sources in before]
    stack = [node for node, count in enumerate(missing) if not count]
    stack.sort(key=lambda node: -ranks[node])
    order: list[int] = []
    while stack:
        order.append(stack.pop())
        ready = []
        for target, _ in after[order[-1]]:
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
        stack += sorted(ready, key=lambda node: -ranks[node])
    return order
