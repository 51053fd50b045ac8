"""The journals that the processes of a program left behind (``cgtool run``), as one capture."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import cgtool
from cgtool.analysis.ledger_sizes import sizes_of
from cgtool.analysis.units import count_text
from cgtool.model.capture import (
    SIMULATED_OPS,
    Capture,
    Caveat,
    Contents,
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
    Stream,
)
from cgtool.model.capture_file import Sharing
from cgtool.model.collector import CollectorPaused
from cgtool.model.journal import (
    NOT_WRITTEN,
    Command,
    Counters,
    Journal,
    Ready,
    read_journals,
    read_lost,
    read_ready,
)
from cgtool.model.ledger import (
    CALLABLES,
    COMPILE,
    READY,
    UNSEEN,
    CodeCall,
    Collectives,
    Compile,
    DeviceAllocation,
    Diagnosis,
    Event,
    Ledger,
    LedgerGraph,
    LedgerMemory,
    LedgerPool,
    MemoryUse,
    NotedReplays,
    PoolStream,
    Process,
    ReplayMoment,
    ReplayPlace,
    Skip,
    StepRuns,
    ThreadStack,
)
from cgtool.model.records import (
    Allocated,
    Began,
    CallOfCode,
    Captured,
    Capturing,
    Compiled,
    Finished,
    GraphEnded,
    GraphRead,
    Happened,
    Lost,
    Machine,
    MemoryBack,
    MemoryGone,
    MemoryUsed,
    NodeFailed,
    Noted,
    Pools,
    Ranked,
    Replayed,
    Skipped,
    Stacks,
    StepCaptured,
    Stepped,
    StepRan,
    Tables,
    Unseen,
)

Moments = Callable[[Path, int], Iterable[tuple[int, int]]]
"""Given the log of a process and the number of a graph: times of the system clock (ns), and how
many replays of the graph there were."""

_MOMENTS = "time_ns", "began_ns", "ended_ns", "gone_ns"
"""Fields that are by the system clock in a record."""
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_NOT_ENDED = "the process ended during the capture"


@dataclass
class _Tables:
    """The lists of the capture, each entry once."""

    frames: dict[Frame, int] = field(default_factory=dict)
    origins: dict[Origin, int] = field(default_factory=dict)
    functions: dict[Function, int] = field(default_factory=dict)
    pools: dict[tuple[int, tuple[int, int]], int] = field(default_factory=dict)
    """By process and id."""
    distributed: set[int] = field(default_factory=set)
    """The origins that are collectives."""
    collectives: dict[Collectives, int] = field(default_factory=dict)
    sharing: Sharing = field(default_factory=Sharing)

    def frame_indices(self, frames: Iterable[Frame]) -> tuple[int, ...]:
        return tuple(self.frames.setdefault(frame, len(self.frames)) for frame in frames)

    def pool_index(self, process: int, id: tuple[int, int]) -> int:
        return self.pools.setdefault((process, id), len(self.pools))


@dataclass
class _ProcessLedger:
    """One process, while its records are read."""

    number: int
    started_ns: int
    tables: _Tables
    process: Process | None = None
    environment: Environment | None = None
    graphs: dict[int, LedgerGraph] = field(default_factory=dict)
    captured: dict[int, Captured] = field(default_factory=dict)
    """The captures that succeeded."""
    contents: dict[int, Contents] = field(default_factory=dict)
    places: dict[int, dict[tuple[int, ...], int]] = field(default_factory=dict)
    notes: dict[int, Noted | StepRan] = field(default_factory=dict)
    step_runs: list[StepRuns] = field(default_factory=list)
    skips: Counter[str] = field(default_factory=Counter)
    events: list[Event] = field(default_factory=list)
    compiles: list[Compile] = field(default_factory=list)
    allocations: list[DeviceAllocation] = field(default_factory=list)
    pools: dict[tuple[int, int], LedgerPool] = field(default_factory=dict)
    memory: dict[int, LedgerMemory] = field(default_factory=dict)
    """By the number that the process gave it, as in the graphs."""
    gone: dict[int, dict[int, int]] = field(default_factory=dict)
    """By the number of memory that was given back: ``MemoryGone.replays``."""
    lost: list[str] = field(default_factory=list)
    incomplete: bool = False
    """Captures may be among what was lost."""
    ops_in_python: list[bool] = field(default_factory=list)
    """``Captured.ops_in_python`` of each capture."""
    frames: list[int] = field(default_factory=list)
    """Where the frames, origins and functions of this process are in the capture."""
    origins: list[int] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)

    def read(self, journal: Journal) -> None:
        for record in journal.records():
            match record:
                case Began():
                    self.process = self._new(Process, record)
                    if record.simulated:
                        # All that is known if the process ends before ``Machine`` is written.
                        self.environment = Environment(device="simulated", simulated=True)
                case Ranked() | Finished() if self.process is not None:
                    self.process = self._with(self.process, record)
                case Stacks() if self.process is not None:
                    stacks = tuple(
                        ThreadStack(
                            name, self.tables.frame_indices(frames), name in record.entering
                        )
                        for name, frames in record.threads
                    )
                    self.process = msgspec.structs.replace(
                        self.process, stacks=stacks, begun=record.begun
                    )
                case Machine():
                    self.environment = record.environment
                case Tables():
                    self._add(record)
                case Capturing():
                    self.graphs[record.number] = self._new(LedgerGraph, record, failure=_NOT_ENDED)
                    if self.process is not None:  # a hang before it is over
                        self.process = msgspec.structs.replace(self.process, stacks=())
                case Unseen():
                    self.graphs[record.number] = self._new(LedgerGraph, record, owner=UNSEEN)
                case Captured():
                    self._captured(record)
                case GraphRead():
                    self._read_graph(record)
                case MemoryUsed():
                    self.memory[record.number] = self._new(LedgerMemory, record)
                case MemoryGone() if record.number in self.memory:
                    self.memory[record.number] = self._with(self.memory[record.number], record)
                    self.gone[record.number] = record.replays
                case MemoryBack() if self.gone.pop(record.number, None) is not None:
                    memory = self.memory[record.number]
                    self.memory[record.number] = msgspec.structs.replace(
                        memory, gone_ns=None, how="", frames=()
                    )
                case Noted() | StepRan():
                    self.notes[record.number] = record
                case StepCaptured() if (entry := self.graphs.get(record.number)) is not None:
                    calls = tuple(map(self._call, record.calls))
                    key = entry.key or record.key
                    self._change(record.number, step=record.step, calls=calls, key=key)
                case Pools():
                    self._read_pools(record)
                case Replayed():
                    frames = self.tables.frame_indices(record.frames)
                    self.places.setdefault(record.number, {})[frames] = record.seen
                case Stepped():
                    self._change(record.number, stepped=record.whole is None, whole=record.whole)
                case NodeFailed() | GraphEnded():
                    self._change(record.number, **self._fields(record, LedgerGraph))
                case Skipped():
                    self.skips[record.reason] += 1
                case Lost():
                    self.lost.append(record.reason)
                    self.incomplete |= record.captures
                case Happened():
                    self.events.append(self._new(Event, record))
                case Compiled():
                    self.compiles.append(self._new(Compile, record))
                case Allocated():
                    self.allocations.append(self._new(DeviceAllocation, record))
        self._count(journal.counters())

    def _fields(self, record: msgspec.Struct, of: type[msgspec.Struct]) -> dict[str, Any]:
        """The fields that a record and a struct of the ledger share, in the units of the ledger."""
        fields: dict[str, Any] = {}
        for name in set(record.__struct_fields__).intersection(of.__struct_fields__):
            value = getattr(record, name)
            if name in ("frames", "allocated"):
                value = self.tables.frame_indices(value)
            elif name in _MOMENTS:
                value = self._since(value)
            fields[name] = value
        return fields

    def _new(self, of: type[_Struct], record: msgspec.Struct, **fields: Any) -> _Struct:
        if "process" in of.__struct_fields__:
            fields["process"] = self.number
        return of(**fields, **self._fields(record, of))

    def _with(self, entry: _Struct, record: msgspec.Struct) -> _Struct:
        return msgspec.structs.replace(entry, **self._fields(record, type(entry)))

    def add_moments(self, seen: Callable[[int], Iterable[tuple[int, int]]]) -> None:
        """``seen``: ``Moments`` of this process, by the number of a graph."""
        for number, graph in self.graphs.items():
            first, last = graph.first_replay_ns, graph.last_replay_ns
            if first is None or last is None:
                continue
            moments = (ReplayMoment(self._since(time_ns), count) for time_ns, count in seen(number))
            between = tuple(each for each in moments if first < each.time_ns < last)
            if between:
                self._change(number, moments=between)

    def add_ready(self, ready: Ready, journal: Journal) -> None:
        """The output has matched: of any process."""
        time_ns, replays = self._since(ready.time_ns), ready.replays.get(journal.log.stem, 0)
        event = Event(self.number, READY, time_ns, replays=replays, output=ready.output)
        self.events.append(event)

    def _call(self, call: CallOfCode) -> CodeCall:
        (code,) = self.tables.frame_indices((call.code,))
        return CodeCall(call.name, code, call.sizes)

    def _since(self, time_ns: int) -> int:
        return max(time_ns - self.started_ns, 0)

    def _change(self, number: int, /, **changes: object) -> None:
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
            op = origin.op or ""
            if op.startswith("c10d::") and not op.startswith(("c10d::send", "c10d::recv")):
                tables.distributed.add(self.origins[-1])
        for function in new.functions:
            self.functions.append(tables.functions.setdefault(function, len(tables.functions)))

    def _captured(self, record: Captured) -> None:
        if record.pool is not None:
            self.tables.pool_index(self.number, record.pool)  # numbered in order of captures
        changes = self._fields(record, LedgerGraph)
        if (cause := record.diagnosis) is not None:
            changes["diagnosis"] = self._new(Diagnosis, cause)
        if not record.frames:
            del changes["owner"], changes["frames"]
        self._change(record.number, **changes)
        self.ops_in_python.append(record.ops_in_python)
        if record.failure is None:
            self.captured[record.number] = record

    def _read_graph(self, record: GraphRead) -> None:
        self.contents[record.number] = self.tables.sharing.contents(
            tuple(map(self._renumbered, record.nodes)), record.edges
        )
        if (entry := self.graphs.get(record.number)) is not None:
            self._change(
                record.number,
                cgtool_ns=entry.cgtool_ns + record.cgtool_ns,
                nodes=len(record.nodes),
                collectives=self._collectives(record),
                collective_bytes=tuple(size for _, size in record.collectives),
                memory=record.uses,
            )

    def _collectives(self, record: GraphRead) -> int | None:
        """The number of those of a graph, with the origins of their nodes."""
        if not record.collectives:
            return None
        nodes = self.contents[record.number][0]
        calls = dict.fromkeys(
            (node.call, node.origin) for node in nodes if node.origin in self.tables.distributed
        )
        # One that launches nothing has no node, and then it is not known which one it is.
        are_known = len(calls) == len(record.collectives)
        places: list[int | None] = (
            [origin for _call, origin in calls] if are_known else [None] * len(record.collectives)
        )
        collectives = tuple(
            msgspec.structs.replace(each, origin=place)
            for (each, _size), place in zip(record.collectives, places, strict=False)
        )
        known = self.tables.collectives
        return known.setdefault(Collectives(collectives), len(known))

    def _read_pools(self, record: Pools) -> None:
        by_pool: dict[tuple[int, int], list[PoolStream]] = defaultdict(list)
        for sizes in record.sizes:
            by_pool[sizes.pool].append(self._new(PoolStream, sizes))
        for id, streams in by_pool.items():
            at, read_ns = self.tables.pool_index(self.number, id), self._since(record.time_ns)
            self.pools[id] = LedgerPool(self.number, at, read_ns, tuple(streams))

    def _renumbered(self, node: Node) -> Node:
        """The node with the origin and the function of the merged capture."""
        # Indices of the first process stay as they are.
        if node.origin is not None and self.origins[node.origin] != node.origin:
            node = msgspec.structs.replace(node, origin=self.origins[node.origin])
        kernel = node.kernel
        if kernel is not None and self.functions[kernel.function] != kernel.function:
            kernel = msgspec.structs.replace(kernel, function=self.functions[kernel.function])
            node = msgspec.structs.replace(node, kernel=kernel)
        return node

    def _count(self, counters: Counters) -> None:
        unread = sum(number not in self.contents for number in self.captured)
        if counters.lost:
            self.incomplete = True
            self.lost.append(f"{count_text(counters.lost, 'record')} could not be written")
        elif unread:
            self.lost.append(f"the nodes of {count_text(unread, 'graph')} were not recorded")
        uncounted = [number for number in self.graphs if number >= len(counters.graphs)]
        if uncounted:
            self.lost.append(
                f"the replays of {count_text(len(uncounted), 'graph')} are not counted"
            )
        for number in uncounted:
            self._change(number, uncounted=True)
        if self.process is not None and self.process.rank is not None:
            # A hang after which more was replayed is over.
            hangs = counters.begun == self.process.begun
            self.process = msgspec.structs.replace(
                self.process,
                begun=counters.begun,
                last_replays=counters.last_replays,
                stacks=self.process.stacks if hangs else (),
            )
        if self.process is not None and any(counters.gpu_ns):
            inside_ns, outside_ns = counters.gpu_ns
            self.process = msgspec.structs.replace(
                self.process, graphs_gpu_ns=inside_ns, other_gpu_ns=outside_ns
            )
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
        # Without counters, what was lost was not counted either.
        may_be_lost = counters.lost or not counters.graphs
        for number, graph in self.graphs.items():
            # The record of its end may be one of those that were lost.
            if graph.failure == _NOT_ENDED and (graph.replays or may_be_lost):
                failure = None if graph.replays else "the end of the capture was not recorded"
                self._change(number, failure=failure)
        untimed = sum(
            graph.replays > 0 and number >= len(counters.times)
            for number, graph in self.graphs.items()
        )
        if untimed:
            self.lost.append(
                f"the host time of the first replay of {count_text(untimed, 'graph')} was not "
                "recorded"
            )
        for number, (first_host, timed, gpu) in enumerate(counters.times):
            if first_host or timed:
                self._change(
                    number,
                    first_replay_host_ns=first_host or None,
                    timed_replays=timed,
                    replay_gpu_ns=gpu,
                )
        if self.process is not None and self.process.graphs_gpu_ns is not None:
            replays = sum(each.replays for each in self.graphs.values())
            timed = sum(each.timed_replays for each in self.graphs.values())
            if timed < replays:
                self.lost.append(
                    f"only {timed:,} of {count_text(replays, 'replay')} have a GPU time"
                )
        if uncounted_notes := sum(number >= len(counters.notes) for number in self.notes):
            self.lost.append(f"the counts of {count_text(uncounted_notes, 'note')} were not kept")
        noted: dict[int, list[NotedReplays]] = defaultdict(list)
        for number, record in self.notes.items():
            count = counters.notes[number][0] if number < len(counters.notes) else 0
            if not count:
                continue
            numbers, texts = _split(record.values)
            names, values = tuple(numbers), tuple(numbers.values())
            if isinstance(record, Noted):
                noted[record.graph].append(NotedReplays(names, values, count, texts))
                continue
            call, frames = self._call(record.call), self.tables.frame_indices(record.frames)
            of = self.number, record.step, call, frames, count
            self.step_runs.append(StepRuns(*of, names, values, texts, record.in_pieces))
        for number, notes in noted.items():
            self._change(number, notes=tuple(notes))
        unseen = sum(graph.owner == UNSEEN for graph in self.graphs.values())
        if unseen:
            self.lost.append(
                f"the capture of {count_text(unseen, 'graph')} was not recorded: it began "
                "before the recording, or was not made by torch.cuda.CUDAGraph; the replays "
                "are counted"
            )


def _split(values: dict[str, float | str]) -> tuple[dict[str, float], tuple[tuple[str, str], ...]]:
    """The numbers among what was noted, and the texts."""
    numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
    texts = ((name, value) for name, value in values.items() if isinstance(value, str))
    return numbers, tuple(texts)


def merge_folder(
    command: Command,
    folder: Path,
    *,
    wall_ns: int | None = None,
    status: int | None = None,
    created: str = "",
    moments: Moments | None = None,
) -> Capture:
    """What a command's processes left in a folder as one capture. ``moments``: of their replays,
    if they were followed."""
    journals, lost, ready = read_journals(folder), read_lost(folder), read_ready(folder)
    with CollectorPaused():
        return merge(command, journals, lost, ready, moments, wall_ns, status, created)


def merge(
    command: Command,
    journals: Iterable[Journal],
    lost: Iterable[str] = (),
    ready: Ready | None = None,
    moments: Moments | None = None,
    wall_ns: int | None = None,
    status: int | None = None,
    created: str = "",
) -> Capture:
    """Journals as one capture. ``lost``: why some processes left none. ``ready``: when the output
    of the program has matched ``--ready-output``. ``wall_ns``: None until the last moment that is
    known."""
    tables = _Tables()
    processes: list[_ProcessLedger] = []
    reasons = list(lost)
    incomplete = bool(reasons)
    for journal in journals:
        process = _ProcessLedger(len(processes), command.started_ns, tables)
        process.read(journal)
        if moments is not None:
            process.add_moments(partial(moments, journal.log))
        if process.process is None:
            # Without a record, there was no room for the first.
            reason = "its records are damaged" if process.lost else NOT_WRITTEN
            reasons.append(f"process {journal.log.name.partition('-')[0]}: {reason}")
            incomplete = True
            continue
        processes.append(process)
        if ready is not None:
            process.add_ready(ready, journal)
        incomplete |= process.incomplete
        reasons += (f"process {process.process.pid}: {reason}" for reason in process.lost)
    if not processes and not reasons:
        reasons.append(
            "no process that cgtool can follow imported PyTorch (python -I, -E and -S cannot "
            "be followed)"
        )
    origins = list(tables.origins)
    graphs: list[Graph] = []
    entries: list[LedgerGraph] = []
    memory: list[LedgerMemory] = []
    for process in processes:
        at = {number: len(memory) + index for index, number in enumerate(process.memory)}
        memory += process.memory.values()
        alike: dict[bytes, int] = {}
        for number in sorted(process.graphs):
            entry, contents = process.graphs[number], process.contents.get(number)
            captured = process.captured.get(number)
            uses = tuple(
                MemoryUse(at[memory], reads, writes, process.gone.get(memory, {}).get(number))
                for memory, reads, writes, _ in map(msgspec.structs.astuple, entry.memory)
                if memory in at
            )
            entry = msgspec.structs.replace(entry, memory=uses)
            if contents is not None and captured is not None:
                if entry.owner == CALLABLES and not entry.key:
                    key = _phase(contents[0], origins)
                    entry = msgspec.structs.replace(entry, key=key)
                graph = _graph(entry, captured, contents, tables)
                graphs.append(graph)
                same = alike.setdefault(_topology(graph), len(entries))
                entry = msgspec.structs.replace(
                    entry,
                    graph=len(graphs) - 1,
                    same_as=None if same == len(entries) else same,
                    holds_a_pool=entry.owner == COMPILE and not entry.key and not graph.nodes,
                )
            entries.append(entry)
    found = (each.environment for each in processes if each.environment is not None)
    environment = max(found, key=lambda each: bool(each.torch), default=Environment(device=""))
    capture = Capture(
        entry=Entry(spec=shlex.join(command.command), kind="program"),
        environment=environment,
        created=created,
        cgtool=cgtool.__version__,
        recorder="program",
        caveats=(
            *_caveats(environment, [each for of in processes for each in of.ops_in_python]),
            *_stepped(entries),
        ),
        graphs=tuple(graphs),
        frames=tuple(tables.frames),
        origins=tuple(tables.origins),
        functions=tuple(tables.functions),
        streams=tuple(_streams(graphs)),
        memory=Memory(
            pools=tuple(Pool(id, f"pool {number}") for number, (_, id) in enumerate(tables.pools)),
            exact=False,
        ),
        ledger=Ledger(
            command=command.command,
            wall_ns=_last_moment(processes) if wall_ns is None else wall_ns,
            exit_status=status,
            processes=tuple(each.process for each in processes if each.process is not None),
            graphs=tuple(entries),
            skips=tuple(
                Skip(process.number, reason, times)
                for process in processes
                for reason, times in process.skips.items()
            ),
            events=tuple(
                sorted(
                    (event for process in processes for event in process.events),
                    key=lambda event: event.time_ns,
                )
            ),
            compiles=tuple(each for process in processes for each in process.compiles),
            allocations=tuple(each for process in processes for each in process.allocations),
            step_runs=tuple(runs for each in processes for runs in each.step_runs),
            collectives=tuple(tables.collectives),
            pools=tuple(pool for each in processes for pool in each.pools.values()),
            memory=tuple(memory),
            lost=tuple(dict.fromkeys(reasons)),
            incomplete=incomplete,
        ),
    )
    return msgspec.structs.replace(capture, graphs=tuple(_named(capture)))


def _last_moment(processes: Iterable[_ProcessLedger]) -> int:
    """From the start of the command (ns): the end of a process, a replay or a capture."""
    moments = [0]
    for each in processes:
        if each.process is not None:
            moments.append(each.process.ended_ns or 0)
        moments += (graph.began_ns for graph in each.graphs.values())
        moments += (graph.last_replay_ns or 0 for graph in each.graphs.values())
    return max(moments)


def _streams(graphs: Sequence[Graph]) -> Iterator[Stream]:
    """By their number in a graph: those of two graphs need not be the same streams."""
    known = (node.stream for graph in graphs for node in graph.nodes)
    for number in range(1 + max((each for each in known if each is not None), default=-1)):
        yield Stream(number, f"stream {number}" if number else "capture stream")


def _named(capture: Capture) -> Iterator[Graph]:
    """The graphs with their names: what captured each, what it is called or else its size, and a
    number."""
    assert capture.ledger is not None
    sizes = sizes_of(capture, capture.ledger)
    several = len(capture.ledger.processes) > 1
    entries = [entry for entry in capture.ledger.graphs if entry.graph is not None]
    names = [
        (entry.process, f"{entry.owner or 'graph'} {entry.key or sizes.get(at, '')}".rstrip())
        for at, entry in enumerate(entries)
    ]
    total, before = Counter(names), Counter[tuple[int, str]]()
    for at, name in enumerate(names):
        # A key or a size is enough for most graphs.
        is_enough = total[name] == 1 and bool(entries[at].key or at in sizes)
        text = name[1] if is_enough else f"{name[1]} {before[name]}"
        before[name] += 1
        text += f", process {name[0]}" if several else ""
        yield msgspec.structs.replace(capture.graphs[at], name=text)


def _graph(entry: LedgerGraph, captured: Captured, contents: Contents, tables: _Tables) -> Graph:
    """A graph that was read, without its name."""
    pool = None
    if captured.pool is not None:
        pool = tables.pool_index(entry.process, captured.pool)
    return Graph(
        name="",
        phase="step",
        pool=pool,
        nodes=contents[0],
        edges=contents[1],
        capture_ns=captured.capture_ns,
        instantiate_ns=captured.instantiate_ns,
        exec_bytes=captured.exec_bytes,
    )


def _phase(nodes: Iterable[Node], origins: Sequence[Origin]) -> str:
    """The phase of a graphed callable: ``forward``, ``backward``, or nothing if no op is known."""
    known = (origins[node.origin] for node in nodes if node.origin is not None)
    first = next((origin for origin in known if origin.op is not None), None)
    if first is None:
        return ""
    return "forward" if first.autograd_node is None else "backward"


def _topology(graph: Graph) -> bytes:
    """A hash of nodes and edges, equal for graphs whose executable graph could be updated to the
    other."""
    nodes = [
        (node.type, node.kernel.function if node.kernel else None, node.shape)
        if node.type != "op"
        else (node.origin, node.shape)
        for node in graph.nodes
    ]
    edges: list[Edge] = sorted(graph.edges, key=lambda edge: (edge.source, edge.target))
    return hashlib.blake2b(msgspec.msgpack.encode((nodes, edges))).digest()


def _caveats(environment: Environment, ops_in_python: Sequence[bool]) -> tuple[Caveat, ...]:
    """``ops_in_python``: whether those of a capture were, by capture."""
    caveats: list[Caveat] = []
    if environment.simulated:
        caveats.append(
            Caveat(
                "simulated",
                f"simulated on CPU tensors: {SIMULATED_OPS}; there are no kernels and no GPU "
                "times, and code compiled by torch.compile captures no graphs",
            )
        )
    if any(ops_in_python):
        which = (
            "captures"
            if all(ops_in_python)
            else (f"{sum(ops_in_python):,} of {len(ops_in_python):,} captures")
        )
        caveats.append(
            Caveat(
                "ops-in-python",
                f"{which} took several times as long as without cgtool, because their ops were "
                "recorded in Python: the recorder in C++ was not compiled yet; if this note is "
                "still there in the next run, `cgtool doctor --build` shows why",
            )
        )
    return tuple(caveats)


def _stepped(entries: Sequence[LedgerGraph]) -> Iterator[Caveat]:
    """What ran node by node, and what did not."""
    stepped = [entry for entry in entries if entry.stepped]
    if stepped:
        replays = sum(entry.replays for entry in stepped)
        yield Caveat(
            "stepped",
            f"{count_text(replays, 'replay')} of {count_text(len(stepped), 'graph')} ran node by "
            "node, which takes longer than without --step",
        )
    for reason, graphs in Counter(entry.whole for entry in entries if entry.whole).items():
        yield Caveat("not-stepped", f"{count_text(graphs, 'graph')} replayed whole: {reason}")
