"""The report on the ranks of a program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from cgtool.analysis.graph.places import file_line
from cgtool.analysis.ranks.differences import Difference, differences_of
from cgtool.analysis.ranks.rank import Rank, ranks_of, ranks_text
from cgtool.analysis.reports import place_of, user_frames
from cgtool.analysis.units import count_text, extremes
from cgtool.findings import code
from cgtool.model.capture import Capture, Frame
from cgtool.model.failure import usage
from cgtool.model.finding import Finding
from cgtool.model.ledger import LedgerGraph, Process

RANK_DIVERGENT_REPLAY = code("rank-divergent-replay")
CAPTURE_WAITS_FOR_NCCL = code("capture-waits-for-nccl")


@dataclass(frozen=True)
class RankRow:
    """One rank."""

    rank: int
    pid: int
    graphs: int
    replays: int
    last_capture: str
    last_replay: str
    """The line that captured what was replayed last."""
    in_replay: bool
    """That replay has begun, and did not return."""
    end: str
    """``finished``, the error that ended it, or what else is known."""


@dataclass(frozen=True)
class RankGraphRow:
    """A graph that ranks captured at the same line, with the same name, in the same order."""

    line: str
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    """This and the next two: the fewest and the most of a rank; one number if they are equal."""
    collectives: tuple[int, ...]
    replays: tuple[int, ...]
    slowest: int | None
    """The rank whose replays take longest: on the GPU with ``--times``, else on the host."""
    slowest_ns: int | None
    median_ns: int | None
    """Of all ranks."""


@dataclass(frozen=True)
class StackRow:
    """What a thread of some processes ran when nothing moved any more."""

    processes: str
    """``ranks 0-2``, or ``process 4711``."""
    thread: str
    frames: tuple[Frame, ...]
    """Innermost first."""


@dataclass(frozen=True)
class RanksReport:
    """The screen of ``cgtool run --ranks``."""

    command: str
    simulated: bool
    world_size: int
    hang: str
    """What was seen of a program that hangs."""
    sentence: str
    differences: tuple[Difference, ...]
    stacks: tuple[StackRow, ...]
    ranks: tuple[RankRow, ...]
    graphs: tuple[RankGraphRow, ...]
    notes: tuple[str, ...]


def ranks_report(captures: Sequence[Capture], command: str, hang: str = "") -> RanksReport:
    """The ranks of a program, compared. ``hang``: what was seen of a program that hangs, which need
    not have ranks. Raises CgtoolError (exit 2) if there are none."""
    ranks = ranks_of(captures)
    if not ranks and not hang:
        raise usage(
            "no rank was recorded",
            why="a process has a rank if it calls torch.distributed.init_process_group before it "
            "captures a graph; older versions of cgtool did not record it",
            fix="cgtool run -- torchrun --nproc-per-node N train.py",
        )
    differences = differences_of(ranks)
    size = max((each.process.world_size or 0 for each in ranks), default=0)
    return RanksReport(
        command=command,
        simulated=any(each.environment.simulated for each in captures),
        world_size=size,
        hang=hang,
        sentence=_sentence(ranks, differences) if ranks else "",
        differences=differences,
        stacks=tuple(stack for each in captures for stack in _stacks(each, ranks)),
        ranks=tuple(map(_row, ranks)),
        graphs=tuple(_graph_rows(ranks)),
        notes=tuple(_notes(ranks, size)),
    )


def rank_findings(capture: Capture) -> Iterator[Finding]:
    """The differences between the ranks of a program, as findings."""
    ranks = ranks_of([capture])
    for each in differences_of(ranks) if len(ranks) > 1 else ():
        yield Finding(
            RANK_DIVERGENT_REPLAY,
            each.sentence,
            each.frames,
            phase="replay",
            evidence=(*each.each, f"process group {each.group}"),
        )
    for rank, frames in _entering(ranks):
        yield Finding(
            CAPTURE_WAITS_FOR_NCCL, _waits_text(rank, frames), frames, phase=f"rank {rank.number}"
        )


def _entering(ranks: Sequence[Rank]) -> Iterator[tuple[Rank, tuple[Frame, ...]]]:
    """Ranks that hang in ``torch.cuda.graph`` before a capture, while another is elsewhere, and the
    calls that lead there."""
    found = [
        (rank, tuple(rank.capture.frames[frame] for frame in thread.frames))
        for rank in ranks
        for thread in rank.process.stacks
        if thread.enters
    ]
    if len({id(rank) for rank, _ in found}) < len(ranks):
        yield from found


def _waits_text(rank: Rank, frames: tuple[Frame, ...]) -> str:
    return (
        f"rank {rank.number} waits in `torch.cuda.graph`, before the capture of "
        f"{file_line(place_of(frames))}, until all work on its GPU is done; a collective that it "
        "has begun may wait for a rank that has not"
    )


def _sentence(ranks: Sequence[Rank], differences: Sequence[Difference]) -> str:
    if differences:
        return differences[0].sentence
    for rank, frames in _entering(ranks):
        return _waits_text(rank, frames)
    early = [each for each in ranks if not each.is_complete]
    if failed := [each for each in early if each.process.error]:
        # The connections of the others end with it.
        first = min(failed, key=lambda each: each.process.ended_ns or 0)
        return (
            f"rank {first.number} ended with {first.process.error}, after "
            f"{count_text(sum(each.replays for each in first.graphs), 'replay')}"
        )
    if len(ranks) == 1:
        return f"only rank {ranks[0].number} was recorded: there is nothing to compare it with"
    same = "capture and replay the same collectives"
    if not any(each.collective_bytes for rank in ranks for each in rank.graphs):
        same = "have no collectives in their graphs"
    return f"{count_text(len(ranks), 'rank')} {same}"


def _stacks(capture: Capture, ranks: Sequence[Rank]) -> Iterator[StackRow]:
    """Those of the main threads, and of others that run more than Python and installed packages.
    Threads that run the same on several ranks are one."""
    names = {id(each.process): each.number for each in ranks}
    alike: defaultdict[tuple[str, tuple[Frame, ...]], list[Process]] = defaultdict(list)
    for process in capture.ledger.processes if capture.ledger else ():
        # Without what starts the ranks, and workers that load data.
        for thread in process.stacks if not ranks or id(process) in names else ():
            frames = tuple(capture.frames[frame] for frame in thread.frames)
            own = [each for each in user_frames(frames) if "/lib/python3." not in each.file]
            if own or thread.name == "MainThread":
                alike[thread.name, frames].append(process)
    for (name, frames), processes in alike.items():
        known = ranks_text(names[id(each)] for each in processes) if ranks else ""
        pids = ", ".join(f"process {each.pid}" for each in processes)
        yield StackRow(known or pids, name, frames)


def _notes(ranks: Sequence[Rank], size: int) -> Iterator[str]:
    known = {each.number for each in ranks}
    if missing := [number for number in range(size) if number not in known]:
        yield f"not recorded, and not compared: {ranks_text(missing)} of {size:,}"
    if unread := [each.number for each in ranks if each.unread]:
        yield f"the nodes of some graphs of {ranks_text(unread)} were not recorded: not compared"


def _row(rank: Rank) -> RankRow:
    graphs, process, replayed = rank.graphs, rank.process, rank.last_replayed
    end = "finished" if process.ended_ns is not None else "killed, or still running"
    return RankRow(
        rank.number,
        process.pid,
        graphs=sum(each.failure is None for each in graphs),
        replays=sum(each.replays for each in graphs),
        last_capture=rank.line(graphs[-1]) if graphs else "",
        last_replay=rank.line(replayed) if replayed else "",
        in_replay=rank.in_replay is not None,
        end=process.error or end,
    )


def _graph_rows(ranks: Sequence[Rank]) -> Iterator[RankGraphRow]:
    alike: defaultdict[tuple[str, int], list[tuple[int, LedgerGraph]]] = defaultdict(list)
    for rank in ranks:
        before = Counter[str]()
        for graph in rank.graphs:
            if graph.failure is None and not graph.holds_a_pool:
                line = rank.line(graph)
                alike[line, before[line]].append((rank.number, graph))
                before[line] += 1
    for (line, _), graphs in alike.items():
        times = {rank: time for rank, graph in graphs if (time := _mean_ns(graph)) is not None}
        slowest = max(times, key=lambda rank: times[rank]) if len(times) > 1 else None
        yield RankGraphRow(
            line,
            tuple(rank for rank, _ in graphs),
            extremes(graph.nodes or 0 for _, graph in graphs),
            extremes(len(graph.collective_bytes) for _, graph in graphs),
            extremes(graph.replays for _, graph in graphs),
            slowest,
            None if slowest is None else times[slowest],
            median_low(times.values()) if len(times) > 1 else None,
        )


def _mean_ns(graph: LedgerGraph) -> int | None:
    if graph.timed_replays:
        return graph.replay_gpu_ns // graph.timed_replays
    later = graph.replays - 1
    if later < 1 or graph.first_replay_host_ns is None:
        return None
    return (graph.replay_host_ns - graph.first_replay_host_ns) // later
