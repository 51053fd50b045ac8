"""Findings on the graphs of a program, from its ledger alone: each with its counts, times and
bytes, at the line that captures them."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import msgspec

from cgtool.analysis.ledger_costs import cost_findings, numbers_of
from cgtool.analysis.ledger_memory import stale_findings
from cgtool.analysis.ledger_notes import (
    Padded,
    better_size,
    padding_of,
    share_of_padding,
    with_graph_of,
)
from cgtool.analysis.ranks.report import rank_findings
from cgtool.analysis.reports import caller_of, place_of, quoted
from cgtool.analysis.stepped import NODE_FAULTS, at_node, node_name
from cgtool.analysis.units import bytes_text, count_text, number_text, percent_text, time_text
from cgtool.findings import code
from cgtool.model.capture import Capture, Frame, Graph, Node
from cgtool.model.finding import Code, Finding
from cgtool.model.ledger import CALLABLES, COMPILE, RESET, Ledger, LedgerGraph, Skip

CAPTURE_TIME_NOT_AMORTIZED = code("capture-time-not-amortized")
CUDAGRAPHS_SKIPPED = code("cudagraphs-skipped")
EMPTY_GRAPH = code("empty-graph")
GRAPH_MOSTLY_PADDING = code("graph-mostly-padding")
GRAPH_NEVER_REPLAYED = code("graph-never-replayed")
GRAPHS_OF_ONE_TOPOLOGY = code("graphs-of-one-topology")
MANY_GRAPHS_FOR_MANY_SHAPES = code("many-graphs-for-many-shapes")
RECAPTURED_AFTER_RECOMPILE = code("recaptured-after-recompile")
RECAPTURED_AFTER_RESET = code("recaptured-after-reset")
RERECORDED_GRAPH_INPUT = code("rerecorded-graph-input")
RERECORDED_LIVE_OUTPUT = code("rerecorded-live-output")
RERECORDED_STATIC_INPUT = code("rerecorded-static-input")

_RERECORDED: Sequence[tuple[str, Code, str]] = (
    (
        "static input data pointer changed",
        RERECORDED_STATIC_INPUT,
        "a parameter, a buffer or another static input was at a different address than at the "
        "capture",
    ),
    (
        "cudagraph managed tensor data pointer changed",
        RERECORDED_GRAPH_INPUT,
        "an input that another graph wrote was at a different address than at the capture",
    ),
    (
        "expected dead indices before graph are live",
        RERECORDED_LIVE_OUTPUT,
        "an output of an earlier graph was still referenced, but was not at the capture",
    ),
)
"""A text of ``CheckInvariantStatus`` of Inductor's graph trees, its code, and what it means."""

_SKIPS: Sequence[tuple[str, str]] = (
    ("mutated inputs", "return the new value instead of writing to the input, or copy the input"),
    ("cpu device", "create the tensor on the GPU, or move the op out of the compiled function"),
    ("multiple devices", "compile the part for each device separately"),
    ("re-recording limit", "remove the cause of the earlier recordings"),
    ("caching allocator", "leave PyTorch's caching allocator enabled"),
    ("incompatible op", "move the op out of the compiled function"),
    ("dynamic shape", "compile with dynamic=False, or pad the inputs to a few sizes"),
)
"""Words of a reason of PyTorch's for capturing nothing, and what to write instead."""

_COMPILATION = re.compile(r"(?P<function>\d+)/\d+")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_INPUT = re.compile(r"input name: (\S+)\.")
_MANY_SHAPES = 16
_RECAPTURES = 5
_SHOWN = 5
_PADDING = 0.5
_PADDED_REPLAYS = 8


class LineGraphs(NamedTuple):
    """The graphs that one line captures for one owner, in order of their capture."""

    owner: str
    frames: tuple[Frame, ...]
    """The calls that lead to the captures, as of the first, innermost first."""
    entries: list[LedgerGraph]
    calls: list[tuple[Frame, ...]]
    """The same for each of ``entries``."""

    @property
    def place(self) -> Frame | None:
        """The innermost line outside installed packages."""
        return place_of(self.frames)

    @property
    def captured(self) -> int:
        """How many captures did not fail."""
        return sum(each.failure is None for each in self.entries)

    def some(self, entries: Sequence[LedgerGraph], singular: str, plural: str) -> str:
        """``1 of 5 graphs captured here was``, of some of them, with the verb."""
        verb = singular if len(entries) == 1 else plural
        return f"{len(entries):,} of {count_text(self.captured, 'graph')} captured here {verb}"

    def calls_to(self, entry: LedgerGraph) -> tuple[Frame, ...]:
        """The calls that lead to the capture of one of them."""
        return self.calls[self.entries.index(entry)]

    def by_caller(self) -> list[tuple[Frame | None, list[LedgerGraph]]]:
        """The graphs by the line that tells them apart: where several lines call the function that
        captures, as a helper of an engine's, these; else the one line."""
        lines: dict[Frame | None, list[LedgerGraph]] = defaultdict(list)
        for calls, entry in zip(self.calls, self.entries, strict=True):
            lines[caller_of(calls) or self.place].append(entry)
        # torch.compile has a name for each function.
        if self.owner == COMPILE or len(lines) == 1:
            return [(self.place, self.entries)]
        return list(lines.items())


def by_line(capture: Capture, ledger: Ledger) -> list[LineGraphs]:
    """The graphs of a program by owner and line, without those that only hold a pool.

    A backward runs on a thread of autograd's, and no line of the user's leads to it: it belongs to
    the line that called its forward, which is of the same compilation.
    """
    captures = []
    forward: dict[tuple[int, str], tuple[int, ...]] = {}
    for entry in ledger.graphs:
        if not entry.holds_a_pool:
            compilation = entry.process, entry.key.partition(" ")[0]
            if entry.frames:
                forward[compilation] = entry.frames
            calls = entry.frames or forward.get(compilation if entry.key else (-1, ""), ())
            captures.append((tuple(capture.frames[frame] for frame in calls), entry))
    return _grouped(captures)


def _grouped(captures: Iterable[tuple[tuple[Frame, ...], LedgerGraph]]) -> list[LineGraphs]:
    """Graphs, each with the calls that lead to its capture, by owner and line."""
    lines: dict[tuple[str, Frame | None], LineGraphs] = {}
    for frames, entry in captures:
        graphs = LineGraphs(entry.owner, frames, [], [])
        graphs = lines.setdefault((entry.owner, graphs.place), graphs)
        graphs.entries.append(entry)
        graphs.calls.append(frames)
    return list(lines.values())


def ledger_findings(capture: Capture) -> tuple[Finding, ...]:
    """The findings of a program's graphs. Raises ValueError for a capture of an ENTRY."""
    ledger = capture.ledger
    if ledger is None:
        raise ValueError("not a capture of a program")
    work, alike = _Work(capture), _alike(ledger)
    findings: list[Finding] = []
    for line in by_line(capture, ledger):
        findings += _failed(capture, line)
        findings += _empty(capture, line)
        findings += _rerecorded(line)
        findings += _recompiled(line)
        findings += _unused(line, ledger)
        findings += _captured_again(line, work)
        findings += _many_shapes(line, work)
        findings += _padded(line)
        if not capture.environment.simulated:
            # Of the simulated device, times are those of the simulation, and nodes are ops.
            if not ledger.stepped:
                findings += cost_findings(line.entries, line.frames)
            findings += _of_one_topology(capture, line, alike)
    of_replays = *node_faults(capture), *stale_findings(capture), *rank_findings(capture)
    findings = [*of_replays, *findings, *_skipped(ledger.skips)]
    return quoted(findings, capture.sources)


def node_faults(capture: Capture) -> Iterator[Finding]:
    """The nodes that failed in replays (``--step``)."""
    for entry in capture.ledger.graphs if capture.ledger else ():
        failure = entry.node_failure
        if failure is None:
            continue
        graph = _EMPTY if entry.graph is None else capture.graphs[entry.graph]
        node = next(iter(graph.nodes[failure.node :]), None)
        called = "" if node is None else f", `{node_name(capture, node)}`,"
        reason = (
            f"node {failure.node} of {graph.name or entry.owner}{called} fails in replay "
            f"{failure.replay:,}: {failure.error}"
        )
        finding = at_node(NODE_FAULTS, reason, capture, graph, node)
        yield msgspec.structs.replace(
            finding, phase="replay", evidence=failure.evidence, graphs=numbers_of([entry])
        )


def compiled_findings(
    captures: Iterable[tuple[tuple[Frame, ...], LedgerGraph]], skips: Iterable[Skip]
) -> Iterator[Finding]:
    """The findings of the graphs that ``torch.compile`` captures, each with the calls that lead to
    its capture, without their times and nodes."""
    for line in _grouped(captures):
        yield from _rerecorded(line)
        yield from _recompiled(line)
    yield from _skipped(skips)


def _failed(capture: Capture, line: LineGraphs) -> Iterator[Finding]:
    """Captures that an error ended, by what it means."""
    causes = Counter(each.diagnosis for each in line.entries if each.diagnosis is not None)
    for cause, times in causes.items():
        yield Finding(
            Code(cause.code),
            cause.reason,
            tuple(capture.frames[frame] for frame in cause.frames) or line.frames,
            fix=cause.fix,
            phase="capture",
            evidence=_errors(each for each in line.entries if each.diagnosis == cause),
            times=times,
        )


def _errors(entries: Iterable[LedgerGraph]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.failure for entry in entries if entry.failure))[:_SHOWN]


def _empty(capture: Capture, line: LineGraphs) -> Iterator[Finding]:
    """Graphs of the program's own without a node, that were replayed: others keep a pool alive. Of
    compiled code and of graphed callables, a part may have nothing to launch."""
    empty = [
        each
        for each in line.entries
        if each.replays and each.graph is not None and not capture.graphs[each.graph].nodes
    ]
    if empty and line.owner not in (COMPILE, CALLABLES):
        yield _about(
            empty,
            EMPTY_GRAPH,
            f"{line.some(empty, 'is', 'are')} empty: all work ran on the CPU, or on another device "
            "or stream, and replays do nothing",
            line,
            count_text(sum(each.replays for each in empty), "replay"),
        )


def _rerecorded(line: LineGraphs) -> Iterator[Finding]:
    """Graphs that graph trees captured again, by the reason that they give."""
    for words, name, reason in _RERECORDED:
        again = [each for each in line.entries if each.because and each.because.startswith(words)]
        if not again:
            continue
        evidence = [_cost(again)]
        moved = Counter(tensor for each in again for tensor in _INPUT.findall(each.because or ""))
        if moved:
            inputs = (f"{tensor} ({count_text(n, 'time')})" for tensor, n in moved.most_common(5))
            evidence.append(f"inputs: {', '.join(inputs)}")
        yield _about(
            again,
            name,
            f"torch.compile captured {count_text(len(again), 'graph')} again here: {reason}",
            line,
            *evidence,
        )


def _recompiled(line: LineGraphs) -> Iterator[Finding]:
    """Functions that Dynamo compiled several times, each time with graphs of its own."""
    compilations: dict[tuple[int, str], dict[str, list[LedgerGraph]]] = defaultdict(dict)
    for entry in line.entries:
        if entry.owner == COMPILE and (match := _COMPILATION.match(entry.key)):
            versions = compilations[entry.process, match["function"]]
            versions.setdefault(match[0], []).append(entry)
    for versions in compilations.values():
        if len(versions) > 1:
            _, *later = versions.values()
            graphs = [entry for entries in later for entry in entries]
            yield _about(
                graphs,
                RECAPTURED_AFTER_RECOMPILE,
                f"a function was compiled {count_text(len(versions), 'time')}, and each "
                "compilation captured its own graphs",
                line,
                _cost(graphs),
                f"compilations {', '.join(versions)}",
            )


def _unused(line: LineGraphs, ledger: Ledger) -> Iterator[Finding]:
    unused = [each for each in line.entries if each.is_unused]
    if unused and not ledger.failed_early:
        yield _about(
            unused,
            GRAPH_NEVER_REPLAYED,
            f"{line.some(unused, 'was', 'were')} never replayed"
            + (" after its capture" if line.owner == COMPILE else ""),
            line,
            _cost(unused, in_unused_pools(unused, ledger)),
        )


def in_unused_pools(unused: Iterable[LedgerGraph], ledger: Ledger) -> list[LedgerGraph]:
    """The graphs whose memory nothing else uses: none of their pool was replayed."""
    used = {
        (each.process, each.pool)
        for each in ledger.graphs
        if (each.uses or each.uncounted) and each.pool
    }
    return [each for each in unused if (each.process, each.pool) not in used]


def _captured_again(line: LineGraphs, work: _Work) -> Iterator[Finding]:
    """The same work captured again after the graph of it had ended: for every use, or because the
    program has reset the graph."""
    for_every_use: list[LedgerGraph] = []
    after_reset: list[LedgerGraph] = []
    works = 0
    for entries in work.groups(line.entries, work.identity):
        again = [
            after
            for before, after in pairwise(entries)
            if before.ended_ns is not None and before.ended_ns <= after.began_ns
        ]
        if len(again) + 1 >= _RECAPTURES and all(
            each.uses <= 1 and not each.uncounted for each in entries
        ):
            works += 1
            for_every_use += again
        else:
            after_reset += (each for each in again if each.because == RESET)
    if for_every_use:
        of = "the same work" if works == 1 else f"{works:,} different graphs"
        yield _about(
            for_every_use,
            CAPTURE_TIME_NOT_AMORTIZED,
            f"{count_text(len(for_every_use) + works, 'capture')} of {of}, each replayed at most "
            "once and dropped before the same was captured again",
            line,
            _cost(for_every_use),
        )
    if after_reset:
        yield _about(
            after_reset,
            RECAPTURED_AFTER_RESET,
            f"{line.some(after_reset, 'was', 'were')} captured again after `reset()`, with the "
            "same work as before",
            line,
            _cost(after_reset),
        )


def _many_shapes(line: LineGraphs, work: _Work) -> Iterator[Finding]:
    for entries in work.groups(line.entries, work.ops):
        shapes = len(work.groups(entries, work.identity))
        if shapes >= _MANY_SHAPES:
            yield _about(
                entries,
                MANY_GRAPHS_FOR_MANY_SHAPES,
                f"{count_text(len(entries), 'graph')} of the same ops are captured here, for "
                f"{shapes:,} sets of shapes",
                line,
                _cost(entries),
            )


def _padded(line: LineGraphs) -> Iterator[Finding]:
    """Graphs that are replayed for much less than they compute."""
    found: dict[str, list[Padded]] = defaultdict(list)
    graphs: dict[str, list[LedgerGraph]] = defaultdict(list)
    for entry in line.entries:
        for name, padded in padding_of([entry]).items():
            replays = sum(each.replays for each in padded)
            if replays >= _PADDED_REPLAYS and (share_of_padding(padded) or 0) >= _PADDING:
                found[name] += padded
                graphs[name].append(entry)
    for name, padded in found.items():
        evidence, fix = [], None
        for size in sorted({each.size for each in padded}, reverse=True)[:_SHOWN]:
            of_size = [each for each in padded if each.size == size]
            evidence.append(
                f"{name} {number_text(size)}: {_needs(of_size)}, "
                f"{percent_text(share_of_padding(of_size))} padding"
            )
        better = better_size(padded)
        if better is not None:
            left = percent_text(share_of_padding(with_graph_of(better, padded)))
            wanted = f"`{name}={number_text(better)}`"
            fix = f"also capture a graph for {wanted}, which leaves {left} padding"
        yield _about(
            graphs[name],
            GRAPH_MOSTLY_PADDING,
            f"{percent_text(share_of_padding(padded))} of the {name} computed by "
            f"{count_text(len(graphs[name]), 'graph')} captured here are padding",
            line,
            *evidence,
            fix=fix,
        )


def _needs(padded: Sequence[Padded]) -> str:
    """``249 replays needed 1 to 6``."""
    least, most = min(each.needed for each in padded), max(each.needed for each in padded)
    needs = " to ".join(map(number_text, sorted({least, most})))
    return f"{count_text(sum(each.replays for each in padded), 'replay')} needed {needs}"


def _alike(ledger: Ledger) -> set[int]:
    """The numbers of graphs that differ from an earlier one in parameters alone, and are there at
    the same time: one that is captured again takes the place of the other. Nobody can update those
    of ``torch.compile``."""
    found: set[int] = set()
    until: dict[int, float] = {}
    """When the last graph of a topology ends, of those so far, by the first of them."""
    for at, entry in enumerate(ledger.graphs):
        if entry.graph is None or entry.owner == COMPILE:
            continue
        topology = at if entry.same_as is None else entry.same_as
        if until.get(topology, 0) > entry.began_ns:
            found.add(entry.graph)
        ended = math.inf if entry.ended_ns is None else entry.ended_ns
        until[topology] = max(until.get(topology, 0), ended)
    return found


def _of_one_topology(capture: Capture, line: LineGraphs, alike: set[int]) -> Iterator[Finding]:
    again = [each for each in line.entries if each.graph in alike]
    if again:
        memory = sum(
            capture.graphs[each.graph].exec_bytes or 0 for each in again if each.graph is not None
        )
        yield _about(
            again,
            GRAPHS_OF_ONE_TOPOLOGY,
            f"{line.some(again, 'has', 'have')} the nodes and dependencies of an earlier "
            "graph, which still exists",
            line,
            f"{time_text(sum(each.instantiate_ns or 0 for each in again))} to instantiate "
            + ("it" if len(again) == 1 else "them")
            + (f", and {bytes_text(memory)} in the driver" if memory else ""),
        )


def _skipped(skips: Iterable[Skip]) -> Iterator[Finding]:
    """Why compiled code runs without graphs, at the line that PyTorch names."""
    times = Counter[str]()
    for skip in skips:
        times[skip.reason] += skip.times
    for text, count in times.items():
        places = _FRAME.finditer(text)
        frames = [Frame(at["file"], int(at["line"]), at["function"]) for at in places]
        first = text.strip().partition("\n")[0]
        words = re.sub(r"\.? *Found from ?:.*", "", first).strip()
        words = re.sub(r"^skipping cudagraphs? due to ", "", words)
        fixes = (fix for sign, fix in _SKIPS if sign in words)
        yield Finding(
            CUDAGRAPHS_SKIPPED,
            f"compiled code runs without a CUDA graph: {words}",
            tuple(reversed(frames)),
            fix=next(fixes, None),
            times=count,
        )


# --- sentences


def _about(
    entries: Sequence[LedgerGraph],
    name: Code,
    reason: str,
    line: LineGraphs,
    *evidence: str,
    fix: str | None = None,
) -> Finding:
    """A finding about some graphs of a line."""
    return Finding(
        name,
        reason,
        line.calls_to(entries[0]),
        fix=fix,
        evidence=(*evidence, *_names(entries)),
        graphs=numbers_of(entries),
    )


def _cost(entries: Sequence[LedgerGraph], holders: Iterable[LedgerGraph] | None = None) -> str:
    """``3 captures: 41.0 ms and 38.0 MiB more reserved``, as far as the ledger has figures.
    ``holders`` are the graphs whose memory counts, by default all."""
    text, spent = count_text(len(entries), "capture"), sum(each.capture_ns for each in entries)
    if spent:
        text += f": {time_text(spent)}"
    reserved = reserved_text(entries if holders is None else holders)
    return text + (f" and {reserved} more reserved" if reserved else "")


def reserved_text(entries: Iterable[LedgerGraph]) -> str:
    """``38.0 MiB``, what their captures reserved, or ``up to 38.0 MiB``; empty for nothing."""
    holders = [each for each in entries if each.reserved_bytes]
    if not holders:
        return ""
    at_most = "up to " if any(each.overlaps for each in holders) else ""
    return at_most + bytes_text(sum(each.reserved_bytes or 0 for each in holders))


def _names(entries: Sequence[LedgerGraph]) -> Iterator[str]:
    """``graphs 0 (0/0 forward), 3 (0/1 forward)``, by the numbers of ``cgtool dump --graph`` where
    there is a file, and by name."""
    names = [
        each.key if each.graph is None else f"{each.graph}" + (f" ({each.key})" * bool(each.key))
        for each in sorted(entries, key=lambda entry: (entry.process, entry.number))
    ]
    names = list(dict.fromkeys(filter(None, names)))
    if names:
        more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        yield f"graph{'s' if len(names) > 1 else ''} {', '.join(names[:_SHOWN])}{more}"


# --- what graphs do

_EMPTY = Graph("", "step")


class _Work:
    """The work of the graphs of a ledger, in forms that can be compared."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def of(self, entry: LedgerGraph) -> Graph:
        return _EMPTY if entry.graph is None else self._capture.graphs[entry.graph]

    def groups(
        self, entries: Iterable[LedgerGraph], key: Callable[[LedgerGraph], Hashable]
    ) -> list[list[LedgerGraph]]:
        """The graphs whose nodes are known, by process and key."""
        groups: dict[Hashable, list[LedgerGraph]] = defaultdict(list)
        for entry in entries:
            if self.of(entry).nodes:
                groups[entry.process, key(entry)].append(entry)
        return list(groups.values())

    def identity(self, entry: LedgerGraph) -> bytes:
        """A digest of its nodes with their ops, lines and sizes, and of its edges: no address, nor
        from where the capturing function was called."""
        nodes = [
            (node.type, self._places[node.origin], node.shape, _sizes(node))
            for node in self.of(entry).nodes
        ]
        return hashlib.blake2b(msgspec.msgpack.encode((nodes, self.of(entry).edges))).digest()

    def ops(self, entry: LedgerGraph) -> tuple[str | None, ...]:
        """The ops that it was captured from, in their order."""
        calls = dict.fromkeys((node.call, node.origin) for node in self.of(entry).nodes)
        return tuple(self._places[origin][0] for _, origin in calls)

    @cached_property
    def _places(self) -> dict[int | None, tuple[str | None, tuple[int, ...]]]:
        """Op and innermost line, by origin."""
        origins = enumerate(self._capture.origins)
        return {None: (None, ()), **{at: (each.op, each.frames[:1]) for at, each in origins}}


def _sizes(node: Node) -> tuple[object, ...]:
    """The function and launch sizes of a kernel, or the bytes of a copy or a fill."""
    if node.kernel is not None:
        return node.kernel.function, node.kernel.grid, node.kernel.block
    work = node.copy or node.fill
    return () if work is None else (work.bytes,)
