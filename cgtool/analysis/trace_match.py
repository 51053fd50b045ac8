"""Matches each kernel of another profiler's trace to the node of a captured graph that it ran for.

A launch of a graph runs all of its nodes. If the records of a trace name their nodes, those are the
nodes, provided that their kernels have the same names. Otherwise the graph is the one that has the
same kernels with the same grids and blocks, and its nodes run in the order that the edges force.
Inductor tunes the grids and blocks of its kernels in each process again, so those of all the others
decide, and then the launches before and after (``trace_sequence``). A record that may belong to
several nodes gets the facts that they share. A launch that matches no graph gets nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cached_property
from typing import Literal, TypeVar

import msgspec

from cgtool.analysis.graph.kernel_names import demangle, short_kernel, words_of
from cgtool.analysis.graph.places import Place, Places
from cgtool.analysis.graph.schedule import Order
from cgtool.analysis.trace_sequence import OTHER_SIZES, narrowed
from cgtool.analysis.units import count_text
from cgtool.model.capture import Capture, Graph
from cgtool.model.gpu_trace import Record

TIMED = ("kernel", "memcpy", "memset")
"""Types of nodes that profilers record."""
How = Literal["node id", "order", "neighbors", "names", "ambiguous", "none"]
"""The surest first. ``neighbors``: as ``order``, but the launches before and after say which of
several graphs it is. ``names``: the kernels are those of the graph, but grids or blocks differ.
``ambiguous``: one of several nodes, which come from different places."""

Target = tuple[int, int]
"""Index of a graph, id of a node."""
Name = str | frozenset[str]
"""The words of a kernel's name, or ``memcpy``, or ``memset``."""
Sized = tuple[Name, tuple[int, ...]]
"""With the grid and the block of a kernel."""
_OF_THE_DRIVER = re.compile(r"(memcpy|memset)\w*")
"""Kernels with which the driver copies and fills in a graph: ``memcpy128``, ``memcpy32_post``."""
_OF_INDUCTOR = "triton_"
"""How the names of kernels begin that Inductor generates."""
_ANY = (-1,)
"""The size of a kernel that Inductor tunes."""
_NAMES_SHOWN = 3
Class = TypeVar("Class")
"""A key that is equal for a record and the nodes that it may belong to."""


class NodeMatch(msgspec.Struct, frozen=True):
    """The node that one record belongs to, as far as it is known."""

    how: How = "none"
    targets: tuple[Target, ...] = ()
    """The nodes that it may be."""
    place: Place = Place()
    """The place that these nodes share; if their modules differ, all are named."""


class Fit(msgspec.Struct, frozen=True):
    """The graph that one launch replayed, as far as it is known."""

    graphs: tuple[int, ...]
    """The graphs of the capture that this launch may have replayed; empty if it matches none."""
    matches: tuple[NodeMatch, ...]
    """One for each record."""
    why: str | None = None
    """Why it matches none."""


class Launch(msgspec.Struct, frozen=True):
    """One launch of a graph in a trace."""

    records: tuple[Record, ...]
    """In order of their start."""
    fit: Fit


def match_launches(capture: Capture, records: Iterable[Record]) -> list[Launch]:
    """The launches that the records of a trace belong to, in order of their start."""
    together: dict[tuple[int, ...], list[Record]] = defaultdict(list)
    for record in records:
        together[record.launch].append(record)
    matcher = Matcher(capture)
    groups = [
        tuple(sorted(group, key=lambda record: record.start_ns)) for group in together.values()
    ]
    groups.sort(key=lambda group: group[0].start_ns)
    launches = [Launch(group, matcher.fit(group)) for group in groups]
    _narrow(capture, matcher, launches)
    known = _by_executable(launches, capture)
    complete = {graph for launch in launches for graph in launch.fit.graphs}
    for at, launch in enumerate(launches):
        if (number := _executable(launch)) in known:
            launches[at] = Launch(launch.records, matcher.fit(launch.records, known[number]))
        elif launch.records[0].is_rest and launch.records[0].graph is None:
            # What is left of it may be all of another graph. With a number of its own, it is none
            # of the complete ones.
            rest = matcher.fit_rest(launch.records, complete)
            if rest is not None and set(launch.fit.graphs) <= set(rest.graphs):
                launches[at] = Launch(launch.records, rest)
    return launches


def _narrow(capture: Capture, matcher: Matcher, launches: list[Launch]) -> None:
    """Looks at the launches of each device in their order, where the trace has no node ids."""
    by_device: dict[int, list[int]] = defaultdict(list)
    for at, launch in enumerate(launches):
        if launch.fit.graphs and launch.records[0].node is None:
            by_device[launch.records[0].launch[0]].append(at)
    for own in by_device.values():
        options = [matcher.options(launches[at]) for at in own]
        for at, graphs in zip(own, narrowed(capture, options), strict=True):
            before = launches[at].fit.graphs
            if graphs != before:
                records = launches[at].records
                fit = matcher.fit(records, graphs)
                if not set(before) <= set(graphs):
                    fit = _by_neighbors(fit)
                launches[at] = Launch(records, fit)


def _by_neighbors(fit: Fit) -> Fit:
    matches = (
        msgspec.structs.replace(match, how="neighbors") if match.how == "order" else match
        for match in fit.matches
    )
    return msgspec.structs.replace(fit, matches=tuple(matches))


_Executable = tuple[int, int, int]
"""Device, process, and CUPTI's number of a graph: each process counts its own."""


def _executable(launch: Launch) -> _Executable | None:
    """If the trace names them."""
    first = launch.records[0]
    if first.graph is None or first.process is None:
        return None
    return first.launch[0], first.process, first.graph


def _by_executable(
    launches: Sequence[Launch], capture: Capture
) -> dict[_Executable, tuple[int, ...]]:
    """For each of CUPTI's numbers, the graphs that all of its launches may have replayed.

    A process numbers its graphs as it instantiates them. If one in the trace has as many numbers as
    a process of the capture has equal graphs, they are those graphs, in this order.
    """
    graphs: dict[_Executable, set[int]] = {}
    for launch in launches:
        number = _executable(launch)
        if number is not None and launch.fit.graphs:
            graphs.setdefault(number, set(launch.fit.graphs)).intersection_update(launch.fit.graphs)
    alike: dict[tuple[int, tuple[int, ...]], list[_Executable]] = defaultdict(list)
    for number, candidates in graphs.items():
        alike[number[1], tuple(sorted(candidates))].append(number)
    entries = capture.ledger.graphs if capture.ledger else ()
    process_of = {entry.graph: entry.process for entry in entries}
    known: dict[_Executable, tuple[int, ...]] = {}
    for (_, equal), numbers in alike.items():
        by_process: dict[int, list[int]] = defaultdict(list)
        for graph in equal:
            by_process[process_of.get(graph, 0)].append(graph)
        is_each = all(len(own) == len(numbers) for own in by_process.values())
        for at, number in enumerate(sorted(numbers)):
            known[number] = tuple(own[at] for own in by_process.values()) if is_each else equal
    return {number: candidates for number, candidates in known.items() if candidates}


class _Template:
    """The records that one launch of a graph leaves."""

    def __init__(self, index: int, graph: Graph, kernels: Sequence[Name]) -> None:
        self.index, self.graph = index, graph
        timed = [node for node in graph.nodes if node.type in TIMED]
        self.nodes = [node.id for node in timed]
        self.names: list[Name] = [
            kernels[node.kernel.function] if node.kernel is not None else node.type
            for node in timed
        ]
        self.sized: list[Sized] = [
            (name, (*node.kernel.grid, *node.kernel.block) if node.kernel is not None else ())
            for name, node in zip(self.names, timed, strict=True)
        ]
        self.untuned: list[Sized] | None = None
        """The records without the sizes that Inductor tunes; None if no kernel keeps its size."""

    @cached_property
    def name_of(self) -> dict[int, Name]:
        """The name of each node, by its id."""
        return dict(zip(self.nodes, self.names, strict=True))

    @cached_property
    def sized_of(self) -> dict[int, Sized]:
        """The records with grid and block."""
        return dict(zip(self.nodes, self.sized, strict=True))

    @cached_property
    def counts(self) -> Counter[Name]:
        """How many nodes have each name."""
        return Counter(self.names)

    @cached_property
    def order(self) -> Order:
        return Order(len(self.graph.nodes), self.graph.edges)

    def ordered(
        self, classes: Sequence[Class], own: Sequence[Class], starts: Sequence[int]
    ) -> list[list[int]] | None:
        """The nodes that each record may belong to; None if the records run in an order that the
        edges do not allow. ``classes`` and ``starts`` are those of the records, in order of their
        start; ``own`` are the classes of the nodes: the same, as often."""
        if self.order.is_chain:
            return [[node] for node in self.nodes] if list(classes) == list(own) else None
        by_class: dict[Class, list[int]] = defaultdict(list)
        for node, class_ in zip(self.nodes, own, strict=True):
            by_class[class_].append(node)
        turns = {
            class_: iter(nodes) if self.order.is_sequence(nodes) else None
            for class_, nodes in by_class.items()
        }
        candidates = [
            by_class[class_] if (turn := turns[class_]) is None else [next(turn)]
            for class_ in classes
        ]
        began = {
            nodes[0]: at for nodes, at in zip(candidates, starts, strict=True) if len(nodes) == 1
        }
        never = max(starts)
        if any(
            began.get(edge.source, 0) > began.get(edge.target, never) for edge in self.graph.edges
        ):
            return None
        return candidates


class Matcher:
    """Matches launches to the graphs of one capture; equal launches only once."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._places = Places(capture)
        self._texts: dict[Name, str] = {}
        self._tuned: set[Name] = set()
        kernels = [self._kernel(function.name) for function in capture.functions]
        self._kernels = frozenset(kernels)
        self._templates = {
            index: _Template(index, graph, kernels)
            for index, graph in enumerate(capture.graphs)
            if graph.parent is None
        }
        self._alike: dict[object, list[_Template]] = defaultdict(list)
        for template in self._templates.values():
            if template.nodes:
                template.untuned = self._untuned(template.sized)
                keys = {
                    _multiset(classes)
                    for classes in (template.sized, template.names, template.untuned)
                    if classes is not None
                }
                for key in keys:
                    self._alike[key].append(template)
        self._names: dict[tuple[str, str], Name] = {}
        self._fits: dict[object, Fit] = {}
        self._matches: dict[tuple[How, tuple[Target, ...]], NodeMatch] = {}

    def fit(self, records: Sequence[Record], graphs: tuple[int, ...] | None = None) -> Fit:
        """Which graph a launch replayed. ``graphs``: those that it may be, if that is known; nodes
        may then be missing from the trace."""
        names = [self._name(record) for record in records]
        sized = self._sized(records)
        numbers = tuple(record.node for record in records)
        key = (tuple(sized), numbers, graphs)
        if key not in self._fits:
            ways = (
                self._by_number(numbers, names, sized, graphs),
                self._by_order(records, sized, "order", lambda own: own.sized, graphs),
                self._by_untuned(records, sized, graphs),
                self._by_order(records, names, "names", lambda own: own.names, graphs),
            )
            fits = [fit for fit in ways if fit is not None]
            # The surest that leaves out none of the graphs.
            whole = (fit for fit in fits if set(graphs or ()) <= set(fit.graphs))
            none = Fit((), (NodeMatch(),) * len(records), None if fits else self._why(names))
            self._fits[key] = next(whole, fits[0] if fits else none)
        return self._fits[key]

    def options(self, launch: Launch) -> dict[int, int]:
        """The graphs that a launch may have replayed, and the cost of each for ``narrowed``."""
        options = dict.fromkeys(launch.fit.graphs, 0)
        sized = self._sized(launch.records)
        like = self._by_untuned(launch.records, sized, None)
        for graph in like.graphs if like else ():
            is_exact = self._templates[graph].sized == sized
            options.setdefault(graph, 0 if is_exact else OTHER_SIZES)
        return options

    def fit_rest(self, records: Sequence[Record], graphs: Container[int]) -> Fit | None:
        """Which graph a launch replayed whose first nodes ran before the trace began, if its nodes
        run one after the other; None if it is none of ``graphs``."""
        sized = self._sized(records)
        found = [
            (template, [[node] for node in template.nodes[-len(sized) :]])
            for template in self._templates.values()
            if template.order.is_chain and template.sized[-len(sized) :] == sized
        ]
        is_known = any(template.index in graphs for template, _ in found)
        return self._fit("order", found) if is_known else None

    def _sized(self, records: Sequence[Record]) -> list[Sized]:
        return [
            (name, () if isinstance(name, str) else record.size)
            for name, record in zip(map(self._name, records), records, strict=True)
        ]

    def _untuned(self, sized: Sequence[Sized]) -> list[Sized] | None:
        """Without the sizes that Inductor tunes; None if no kernel has another one."""
        is_tuned = [name in self._tuned for name, _ in sized]
        if not any(size and not tuned for (_, size), tuned in zip(sized, is_tuned, strict=True)):
            return None
        return [
            (name, _ANY if tuned else size)
            for (name, size), tuned in zip(sized, is_tuned, strict=True)
        ]

    def _kernel(self, name: str) -> Name:
        """The name of a kernel, mangled or not, whoever demangled it."""
        words = words_of(name)
        self._texts.setdefault(words, demangle(name))
        if name.startswith(_OF_INDUCTOR):
            self._tuned.add(words)
        return words

    def _name(self, record: Record) -> Name:
        key = (record.type, record.name)
        if key not in self._names:
            own = _OF_THE_DRIVER.fullmatch(record.name)
            if record.type != "kernel":
                self._names[key] = record.type
            elif own and words_of(record.name) not in self._kernels:
                self._names[key] = own[1]
            else:
                self._names[key] = self._kernel(record.name)
        return self._names[key]

    def _by_number(
        self,
        numbers: Sequence[int | None],
        names: list[Name],
        sized: list[Sized],
        graphs: tuple[int, ...] | None,
    ) -> Fit | None:
        """By the ids of the nodes: the kernel of each must have the name of the record."""
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        candidates = (
            self._alike[_multiset(names)]
            if graphs is None
            else [self._templates[graph] for graph in graphs]
        )
        fitting = [
            template
            for template in candidates
            if [template.name_of.get(number) for number in known] == names
        ]
        same_sizes = [
            template
            for template in fitting
            if [template.sized_of.get(number) for number in known] == sized
        ]
        nodes = [[number] for number in known]
        return self._fit("node id", [(template, nodes) for template in same_sizes or fitting])

    def _by_order(
        self,
        records: Sequence[Record],
        classes: Sequence[Class],
        how: How,
        own: Callable[[_Template], Sequence[Class] | None],
        graphs: tuple[int, ...] | None,
    ) -> Fit | None:
        starts = [record.start_ns for record in records]
        candidates = self._alike[_multiset(classes)]
        matching = [
            (template, nodes)
            for template in candidates
            if (graphs is None or template.index in graphs)
            and (own_classes := own(template)) is not None
            and (nodes := template.ordered(classes, own_classes, starts)) is not None
        ]
        return self._fit(how, matching)

    def _by_untuned(
        self, records: Sequence[Record], sized: Sequence[Sized], graphs: tuple[int, ...] | None
    ) -> Fit | None:
        if (untuned := self._untuned(sized)) is None:
            return None
        return self._by_order(records, untuned, "order", lambda own: own.untuned, graphs)

    def _fit(self, how: How, matching: Sequence[tuple[_Template, list[list[int]]]]) -> Fit | None:
        if not matching:
            return None
        graphs = tuple(template.index for template, _ in matching)
        # Records that may be the same many nodes share one list of them.
        known: dict[tuple[int, ...], NodeMatch] = {}
        matches = []
        for candidates in zip(*(nodes for _, nodes in matching), strict=True):
            key = tuple(map(id, candidates))
            if key not in known:
                targets = (
                    (graph, node)
                    for graph, own in zip(graphs, candidates, strict=True)
                    for node in own
                )
                known[key] = self._match(how, tuple(targets))
            matches.append(known[key])
        return Fit(graphs, tuple(matches))

    def _match(self, how: How, targets: tuple[Target, ...]) -> NodeMatch:
        key = (how, targets)
        if key not in self._matches:
            graphs = self._capture.graphs
            places = dict.fromkeys(
                self._places.of(graphs[graph].nodes[node]) for graph, node in targets
            )
            self._matches[key] = NodeMatch(
                how if len(places) == 1 else "ambiguous", targets, _shared(list(places))
            )
        return self._matches[key]

    def _listed(self, kernels: Counter[Name]) -> str:
        names = sorted(short_kernel(self._texts.get(name, str(name))) for name in kernels)
        more = [f"{len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN else []
        return ", ".join(names[:_NAMES_SHOWN] + more)

    def _why(self, names: Sequence[Name]) -> str:
        """How the launch differs from the graph closest to it."""
        counts = Counter(names)
        templates = self._templates.values()
        closest = max(templates, key=lambda each: (counts & each.counts).total(), default=None)
        if closest is None or 2 * (counts & closest.counts).total() < len(names):
            return f"no graph of the capture has more than half of {self._listed(counts)}"
        graph = closest.graph
        if any(node.body for node in graph.nodes):
            return f"`{graph.name}` contains other graphs, whose kernels cannot be matched"
        more, less = counts - closest.counts, closest.counts - counts
        if not more and not less:
            return f"it has the kernels of `{graph.name}`, but in another order"
        differences = [
            f"{verb} {count_text(kernels.total(), 'other') if verb == 'runs' else kernels.total()} "
            f"({self._listed(kernels)})"
            for verb, kernels in (("runs", more), ("lacks", less))
            if kernels
        ]
        return f"closest to `{graph.name}`, but it {' and '.join(differences)}"


def _shared(places: Sequence[Place]) -> Place:
    """The common part of several places."""
    first = places[0]
    if len(places) == 1:
        return first
    shared = {
        name: getattr(first, name)
        for name in Place.__struct_fields__
        if len({getattr(place, name) for place in places}) == 1
    }
    modules = list(dict.fromkeys(place.module for place in places if place.module is not None))
    if "module" not in shared and modules:
        more = ["…"] if len(modules) > _NAMES_SHOWN else []
        shared["module"] = " or ".join(modules[:_NAMES_SHOWN] + more)
    return Place(**shared)


def _multiset(classes: Iterable[object]) -> object:
    return frozenset(Counter(classes).items())
