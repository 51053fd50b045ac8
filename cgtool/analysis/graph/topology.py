"""A graph as text that is equal for graphs that do the same.

A line is a node: what it does, and what it waits for unless that is only the line above. What a
node does is what `diff` compares (kernel, grid, block, shared memory, bytes), not where it comes
from (op, line, module, stream), and no address. On the simulated device, whose nodes are ops, it is
the op and its outputs.

The order of lines must not depend on that in which the nodes were created. So nodes are told apart
by what they do, and then by the nodes before and after them, again and again (color refinement).
What is alike in all that is interchangeable in graphs of programs, as equal branches of a fork are:
any of them comes first. In theory regular graphs have nodes that are alike and not interchangeable,
so their text may depend on the order of creation; equal texts always are equal graphs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from cgtool.analysis.graph.kernel_names import same_in_every_build, short_kernel
from cgtool.analysis.graph.places import NodeDescriber
from cgtool.model.capture import Edge, Node

Links = Sequence[Sequence[tuple[int, str]]]
"""By node: the nodes that it waits for, or that wait for it, and the kind of edge."""


def topology(describer: NodeDescriber, index: int) -> str:
    """The text of ``capture.graphs[index]``, with the graphs inside its nodes."""
    capture = describer.capture
    graph = capture.graphs[index]
    labels = [_label(describer, node) for node in graph.nodes]
    before, after = _links(len(labels), graph.edges)
    order = _in_order(_ranks(labels, before, after), before, after)
    place = {node: at for at, node in enumerate(order)}
    waits = [sorted((place[source], kind) for source, kind in before[node]) for node in order]
    explicit = {at for at, each in enumerate(waits) if each != ([(at - 1, "full")] if at else [])}
    known = sorted({source for at in explicit for source, _ in waits[at]})
    names = {source: f"[{number}]" for number, source in enumerate(known, 1)}
    lines: list[str] = []
    for at, node in enumerate(order):
        head, *inside = labels[node].split("\n")
        if at in names:
            head = f"{names[at]} {head}"
        if at in explicit:
            sources = (
                names[source] + ("" if kind == "full" else f" ({kind})")
                for source, kind in waits[at]
            )
            head += f"  after {', '.join(sources) or 'nothing'}"
        lines += head, *inside
    return "\n".join(lines)


def _label(describer: NodeDescriber, node: Node) -> str:
    """What a node does."""
    words = [node.type]
    if node.kernel is not None:
        words.append(_kernel(describer.capture.functions[node.kernel.function].name))
    elif node.copy is not None:
        words.append(node.copy.kind)
    elif node.type == "op":
        words = [describer.places.of(node).op or node.type]
    for field, value in describer.attributes(node):
        if field.compared:
            shown = "x".join(map(str, value)) if isinstance(value, tuple) else value
            words.append(str(shown) if field.name == "shape" else f"{field.name}={shown}")
    bodies = [topology(describer, body) for body in node.body]
    inside = (
        f"\n  body {number}" + "".join(f"\n    {line}" for line in body.split("\n"))
        for number, body in enumerate(bodies, 1)
    )
    return " ".join(words) + "".join(inside)


def _kernel(mangled: str) -> str:
    """Its short name, and a hash of the whole one if that says more."""
    name, short = same_in_every_build(mangled), short_kernel(mangled)
    if short == name:
        return short
    return f"{short}#{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"


def _links(count: int, edges: Sequence[Edge]) -> tuple[Links, Links]:
    before: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    after: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    for edge in edges:
        before[edge.target].append((edge.source, edge.kind))
        after[edge.source].append((edge.target, edge.kind))
    return before, after


def _ranks(labels: Sequence[str], before: Links, after: Links) -> list[int]:
    """A number for each node, the same in every order of creation but for interchangeable nodes.

    Cells of nodes that are alike so far are split by their edges from and to each new cell, of
    which the largest part is left out (Hopcroft): edges times the logarithm of the nodes.
    """
    cells: list[set[int]] = []
    ranks = [0] * len(labels)

    def add(nodes: set[int]) -> int:
        for node in nodes:
            ranks[node] = len(cells)
        cells.append(nodes)
        return len(cells) - 1

    by_label: dict[str, set[int]] = defaultdict(set)
    for node, label in enumerate(labels):
        by_label[label].add(node)
    new = deque(add(by_label[label]) for label in sorted(by_label))
    waiting = set(new)

    def refine() -> None:
        while new:
            cell = new.popleft()
            waiting.discard(cell)
            meets: dict[int, list[tuple[bool, str]]] = defaultdict(list)
            for node in cells[cell]:
                for target, kind in after[node]:
                    meets[target].append((False, kind))
                for source, kind in before[node]:
                    meets[source].append((True, kind))
            parts: dict[int, dict[tuple[tuple[bool, str], ...], set[int]]] = defaultdict(dict)
            for node, edges in meets.items():
                parts[ranks[node]].setdefault(tuple(sorted(edges)), set()).add(node)
            for split in sorted(parts):
                alike = [parts[split][edges] for edges in sorted(parts[split])]
                if sum(map(len, alike)) == len(cells[split]):
                    alike.pop(0)  # keeps the number of the cell
                for nodes in alike:
                    cells[split] -= nodes
                numbers = [split, *map(add, alike)]
                if split not in waiting:
                    numbers.remove(max(numbers, key=lambda each: len(cells[each])))
                new.extend(each for each in numbers if each not in waiting)
                waiting.update(numbers)

    refine()
    for cell in cells:  # grows
        while len(cell) > 1:
            new.append(add({cell.pop()}))
            waiting.update(new)
            refine()
    return ranks


def _in_order(ranks: Sequence[int], before: Links, after: Links) -> list[int]:
    """Each node after those that it waits for; a chain stays together."""
    missing = [len(sources) for sources in before]

    def ready(nodes: Iterator[int]) -> list[int]:
        return sorted(nodes, key=lambda node: -ranks[node])

    order: list[int] = []
    stack = ready(node for node, count in enumerate(missing) if not count)
    while stack:
        order.append(stack.pop())
        for target, _ in after[order[-1]]:
            missing[target] -= 1
        targets = {target for target, _ in after[order[-1]]}
        stack += ready(target for target in targets if not missing[target])
    return order
