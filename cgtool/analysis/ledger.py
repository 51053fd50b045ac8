"""The graphs of a program (``cgtool run``): the parts of its processes as one capture, and what it
says: one sentence, a row for each line that captures, and findings."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import cgtool
from cgtool.analysis.graph.places import file_line
from cgtool.analysis.reports import place_of
from cgtool.analysis.units import bytes_text, count_text, time_text
from cgtool.model.capture import (
    Capture,
    Caveat,
    Edge,
    Entry,
    Environment,
    Frame,
    Function,
    Graph,
    Memory,
    Node,
    Origin,
    Pool,
)
from cgtool.model.ledger import COMPILE, Ledger, LedgerGraph, Process, ReplayPlace, Skip
from cgtool.model.part_files import (
    COUNTERS,
    LOG,
    LOST,
    Began,
    Captured,
    Capturing,
    Command,
    Finished,
    GraphEnded,
    Lost,
    Machine,
    Replayed,
    Skipped,
    Tables,
    read_counters,
    read_log,
)


@dataclass
class _Tables:
    """The lists of the capture, each entry once."""

    frames: dict[Frame, int] = field(default_factory=dict)
    origins: dict[Origin, int] = field(default_factory=dict)
    functions: dict[Function, int] = field(default_factory=dict)
    pools: dict[tuple[int, tuple[int, int]], int] = field(default_factory=dict)
    """By process and id."""

    def frame_indices(self, frames: Iterable[Frame]) -> tuple[int, ...]:
        return tuple(self.frames.setdefault(frame, len(self.frames)) for frame in frames)


@dataclass
class _Part:
    """One process, while its log is read."""

    number: int
    started_ns: int
    tables: _Tables
    process: Process | None = None
    environment: Environment | None = None
    graphs: dict[int, LedgerGraph] = field(default_factory=dict)
    contents: dict[int, Captured] = field(default_factory=dict)
    places: dict[int, dict[tuple[int, ...], int]] = field(default_factory=dict)
    skips: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    """Where the frames, origins and functions of this process are in the capture."""
    origins: list[int] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)

    def read(self, path: Path) -> None:
        for record in read_log(path):
            match record:
                case Began():
                    self.process = Process(
                        record.pid,
                        record.parent,
                        record.command,
                        self._since(record.time_ns),
                        forked=record.forked,
                    )
                case Machine():
                    self.environment = record.environment
                case Tables():
                    self._add(record)
                case Capturing():
                    self.graphs[record.number] = LedgerGraph(
                        self.number,
                        record.number,
                        record.owner,
                        key=record.key,
                        because=record.because,
                        frames=self.tables.frame_indices(record.frames),
                        thread=record.thread,
                        mode=record.mode,
                        began_ns=self._since(record.time_ns),
                        failure="the process ended during the capture",
                    )
                case Captured():
                    self._captured(record)
                case Replayed():
                    frames = self.tables.frame_indices(record.frames)
                    self.places.setdefault(record.number, {})[frames] = record.seen
                case GraphEnded():
                    self._change(
                        record.number, end=record.end, ended_ns=self._since(record.time_ns)
                    )
                case Skipped():
                    self.skips[record.reason] += 1
                case Lost():
                    self.lost.append(record.reason)
                case Finished() if self.process is not None:
                    ended = self._since(record.time_ns)
                    self.process = msgspec.structs.replace(self.process, ended_ns=ended)
        self._count(path.with_suffix(COUNTERS))

    def _since(self, time_ns: int) -> int:
        return max(time_ns - self.started_ns, 0)

    def _change(self, number: int, **changes: object) -> None:
        if number in self.graphs:
            self.graphs[number] = msgspec.structs.replace(self.graphs[number], **changes)

    def _add(self, new: Tables) -> None:
        tables = self.tables
        self.frames += tables.frame_indices(new.frames)
        for origin in new.origins:
            moved = msgspec.structs.replace(
                origin,
                frames=tuple(self.frames[frame] for frame in origin.frames),
                forward=None if origin.forward is None else self.origins[origin.forward],
            )
            self.origins.append(tables.origins.setdefault(moved, len(tables.origins)))
        for function in new.functions:
            self.functions.append(tables.functions.setdefault(function, len(tables.functions)))

    def _captured(self, record: Captured) -> None:
        self._change(
            record.number,
            capture_ns=record.capture_ns,
            instantiate_ns=record.instantiate_ns,
            collector_ns=record.collector_ns,
            cgtool_ns=record.cgtool_ns,
            pool=record.pool,
            reserved_bytes=record.reserved_bytes,
            failure=record.failure,
        )
        if record.nodes is not None and record.failure is None:
            nodes = tuple(map(self._moved, record.nodes))
            self.contents[record.number] = msgspec.structs.replace(record, nodes=nodes)

    def _moved(self, node: Node) -> Node:
        changes: dict[str, object] = {}
        if node.origin is not None:
            changes["origin"] = self.origins[node.origin]
        if node.kernel is not None:
            function = self.functions[node.kernel.function]
            changes["kernel"] = msgspec.structs.replace(node.kernel, function=function)
        return msgspec.structs.replace(node, **changes) if changes else node

    def _count(self, path: Path) -> None:
        counters = read_counters(path)
        if counters.lost:
            self.lost.append(f"{count_text(counters.lost, 'record')} could not be written")
        uncounted = sum(number >= len(counters.graphs) for number in self.graphs)
        if uncounted:
            self.lost.append(f"the replays of {count_text(uncounted, 'graph')} are not counted")
        for number, (count, first, last, host) in enumerate(counters.graphs):
            if not count:
                continue
            places = self.places.get(number, {})
            self._change(
                number,
                replays=count,
                first_replay_ns=self._since(first),
                last_replay_ns=self._since(last),
                replay_host_ns=host,
                replayed_at=tuple(ReplayPlace(frames, seen) for frames, seen in places.items()),
            )


def merge(folder: Path, command: Command, wall_ns: int, status: int | None) -> Capture:
    """The parts that the processes of a command left in ``folder``, as one capture."""
    tables = _Tables()
    parts: list[_Part] = []
    lost = [_lost(path) for path in sorted(folder.glob(f"*{LOST}"))]
    for path in sorted(folder.glob(f"*{LOG}")):
        part = _Part(len(parts), command.started_ns, tables)
        part.read(path)
        if part.process is not None:
            parts.append(part)
            lost += (f"process {part.process.pid}: {reason}" for reason in part.lost)
    if not folder.is_dir():
        lost.append(f"the folder {folder} was removed while the program ran")
    elif not parts and not lost:
        lost.append(
            "no process that cgtool could follow has imported PyTorch (python -I, -E and -S cannot "
            "be followed)"
        )
    graphs: list[Graph] = []
    entries: list[LedgerGraph] = []
    for part in parts:
        names = Counter[str]()
        alike: dict[bytes, int] = {}
        for number in sorted(part.graphs):
            entry, contents = part.graphs[number], part.contents.get(number)
            if contents is not None:
                graphs.append(_graph(entry, contents, tables, names, len(parts) > 1))
                same = alike.setdefault(_topology(graphs[-1]), len(entries))
                entry = msgspec.structs.replace(
                    entry,
                    graph=len(graphs) - 1,
                    same_as=None if same == len(entries) else same,
                    holds_a_pool=entry.owner == COMPILE and not entry.key and not contents.nodes,
                )
            entries.append(entry)
    found = [part.environment for part in parts if part.environment is not None]
    environment = found[0] if found else Environment(device="unknown")
    processes = tuple(part.process for part in parts if part.process is not None)
    return Capture(
        entry=Entry(spec=shlex.join(command.command), kind="program"),
        environment=environment,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        cgtool=cgtool.__version__,
        recorder="program",
        caveats=_caveats(environment),
        graphs=tuple(graphs),
        frames=tuple(tables.frames),
        origins=tuple(tables.origins),
        functions=tuple(tables.functions),
        memory=Memory(
            pools=tuple(Pool(id, f"pool {number}") for number, (_, id) in enumerate(tables.pools)),
            exact=False,
        ),
        ledger=Ledger(
            command=command.command,
            wall_ns=wall_ns,
            exit_status=status,
            processes=processes,
            graphs=tuple(entries),
            skips=tuple(
                Skip(part.number, reason, times)
                for part in parts
                for reason, times in part.skips.items()
            ),
            lost=tuple(dict.fromkeys(lost)),
        ),
    )


def _lost(path: Path) -> str:
    reason = path.read_text(errors="replace")
    return reason or f"process {path.name.partition('-')[0]}: its files could not be written"


def _graph(
    entry: LedgerGraph, contents: Captured, tables: _Tables, names: Counter[str], several: bool
) -> Graph:
    """A graph that was read. ``names`` counts the graphs of each owner; ``several`` processes."""
    pool = None
    if contents.pool is not None:
        pool = tables.pools.setdefault((entry.process, contents.pool), len(tables.pools))
    owner = " ".join(filter(None, (entry.owner or "graph", entry.key)))
    name = f"{owner} {names[owner]}" + (f", process {entry.process}" if several else "")
    names[owner] += 1
    return Graph(
        name=name,
        phase="step",
        pool=pool,
        nodes=contents.nodes or (),
        edges=contents.edges,
        capture_ns=contents.capture_ns,
        instantiate_ns=contents.instantiate_ns,
    )


def _topology(graph: Graph) -> bytes:
    """What one executable graph could be updated to: nodes by what they run, and edges."""
    nodes = [
        (node.type, node.kernel.function if node.kernel else None, node.shape)
        if node.type != "op"
        else (node.origin, node.shape)
        for node in graph.nodes
    ]
    edges: list[Edge] = sorted(graph.edges, key=lambda edge: (edge.source, edge.target))
    return hashlib.blake2b(msgspec.msgpack.encode((nodes, edges))).digest()


def _caveats(environment: Environment) -> tuple[Caveat, ...]:
    if not environment.simulated:
        return ()
    return (
        Caveat(
            "simulated",
            "simulated on CPU tensors: ops and their order are real, there are no kernels and no "
            "GPU times; code of torch.compile captures no graphs there",
        ),
    )


# --- what a ledger says


@dataclass(frozen=True)
class LedgerRow:
    """The graphs that one line captures."""

    owner: str
    line: str
    keys: tuple[str, ...]
    """What the owner calls them, where it has names."""
    graphs: int
    nodes: tuple[int, ...]
    """The fewest and the most of a graph; one number if they are equal."""
    capture_ns: int
    reserved_bytes: int | None
    replays: int
    unused: int
    """Graphs that were never replayed."""
    failed: int
    mean_interval_ns: int | None
    """Between two replays of one graph."""
    replayed_at: str | None
    """The line that replays most of them."""


@dataclass(frozen=True)
class LedgerReport:
    """The screen of ``cgtool run``."""

    command: str
    device: str
    simulated: bool
    processes: int
    wall_ns: int
    exit_status: int | None
    sentence: str
    rows: tuple[LedgerRow, ...]
    caveats: tuple[Caveat, ...]
    skips: tuple[Skip, ...]
    lost: tuple[str, ...]


def ledger_report(capture: Capture) -> LedgerReport:
    """What the ledger of a capture says. Raises ValueError for a capture without one."""
    ledger = capture.ledger
    if ledger is None:
        raise ValueError("not a capture of a program")
    by_line: defaultdict[tuple[str, str], list[LedgerGraph]] = defaultdict(list)
    for entry in ledger.graphs:
        if entry.holds_a_pool:
            continue
        by_line[entry.owner, _line(capture, entry.frames)].append(entry)
    rows = [_row(capture, owner, line, entries) for (owner, line), entries in by_line.items()]
    return LedgerReport(
        command=shlex.join(ledger.command),
        device=capture.environment.device,
        simulated=capture.environment.simulated,
        processes=len(ledger.processes),
        wall_ns=ledger.wall_ns,
        exit_status=ledger.exit_status,
        sentence=_sentence(ledger),
        rows=tuple(sorted(rows, key=lambda row: -row.replays)),
        caveats=capture.caveats,
        skips=ledger.skips,
        lost=ledger.lost,
    )


def _line(capture: Capture, frames: Sequence[int]) -> str:
    """The innermost line outside installed packages, as ``file.py:12``."""
    own = [capture.frames[index] for index in frames]
    place = place_of(tuple(own))
    return file_line(place)


def _row(capture: Capture, owner: str, line: str, entries: Sequence[LedgerGraph]) -> LedgerRow:
    sizes = [len(capture.graphs[each.graph].nodes) for each in entries if each.graph is not None]
    reserved = [each.reserved_bytes for each in entries if each.reserved_bytes is not None]
    places: Counter[str] = Counter()
    for each in entries:
        for place in each.replayed_at:
            places[_line(capture, place.frames)] += place.seen
    spans = [
        (each.last_replay_ns - each.first_replay_ns, each.replays - 1)
        for each in entries
        if each.replays > 1 and each.first_replay_ns is not None and each.last_replay_ns is not None
    ]
    intervals = sum(count for _, count in spans)
    return LedgerRow(
        owner=owner,
        line=line,
        keys=tuple(dict.fromkeys(each.key for each in entries if each.key)),
        graphs=len(entries),
        nodes=tuple(sorted({min(sizes), max(sizes)})) if sizes else (),
        capture_ns=sum(each.capture_ns for each in entries),
        reserved_bytes=sum(reserved) if reserved else None,
        replays=sum(each.replays for each in entries),
        unused=sum(each.is_unused for each in entries),
        failed=sum(each.failure is not None for each in entries),
        mean_interval_ns=sum(span for span, _ in spans) // intervals if intervals else None,
        replayed_at=places.most_common(1)[0][0] if places else None,
    )


def _sentence(ledger: Ledger) -> str:
    """``6 graphs, 249 replays; 2 graphs were never replayed: 41.0 ms and 38.0 MiB for nothing``."""
    kept = [each for each in ledger.graphs if not each.holds_a_pool]
    graphs = [each for each in kept if each.failure is None]
    failed = len(kept) - len(graphs)
    if not kept:
        return "the program captured no CUDA graph"
    replays = sum(each.replays for each in graphs)
    text = f"{count_text(len(graphs), 'graph')}, {count_text(replays, 'replay')}"
    unused = [each for each in graphs if each.is_unused]
    if unused:
        cost = [time_text(sum(each.capture_ns for each in unused))]
        reserved = sum(each.reserved_bytes or 0 for each in unused)
        if reserved:
            cost.append(bytes_text(reserved))
        verb = "was" if len(unused) == 1 else "were"
        text += (
            f"; {count_text(len(unused), 'graph')} {verb} never replayed: {' and '.join(cost)} for "
            "nothing"
        )
    if failed:
        text += f"; {count_text(failed, 'capture')} failed"
    return text
