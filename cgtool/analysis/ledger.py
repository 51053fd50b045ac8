"""The parts that the processes of a program left behind (``cgtool run``), as one capture."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import cgtool
from cgtool.analysis.units import count_text
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
from cgtool.model.capture_file import no_collection
from cgtool.model.ledger import (
    COMPILE,
    Diagnosis,
    Ledger,
    LedgerGraph,
    Process,
    ReplayPlace,
    Skip,
)
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
            diagnosis=None
            if record.diagnosis is None
            else Diagnosis(
                record.diagnosis.code,
                record.diagnosis.reason,
                record.diagnosis.fix,
                self.tables.frame_indices(record.diagnosis.frames),
            ),
        )
        if record.nodes is not None and record.failure is None:
            nodes = tuple(map(self._moved, record.nodes))
            self.contents[record.number] = msgspec.structs.replace(record, nodes=nodes)

    def _moved(self, node: Node) -> Node:
        # Those of the first process stay where they are.
        if node.origin is not None and self.origins[node.origin] != node.origin:
            node = msgspec.structs.replace(node, origin=self.origins[node.origin])
        kernel = node.kernel
        if kernel is not None and self.functions[kernel.function] != kernel.function:
            kernel = msgspec.structs.replace(kernel, function=self.functions[kernel.function])
            node = msgspec.structs.replace(node, kernel=kernel)
        return node

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


@no_collection()
def merge(folder: Path, command: Command, wall_ns: int, status: int | None) -> Capture:
    """The parts that the processes of a command left in ``folder``, as one capture."""
    tables = _Tables()
    parts: list[_Part] = []
    lost = [_lost(path) for path in _files(folder, LOST)]
    for path in _files(folder, LOG):
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
    environment = found[0] if found else Environment(device="")
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


def _files(folder: Path, suffix: str) -> list[Path]:
    """Of all processes, in the order in which they began: the time is in the name."""
    return sorted(folder.glob(f"*{suffix}"), key=lambda path: int(path.stem.rpartition("-")[2]))


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
