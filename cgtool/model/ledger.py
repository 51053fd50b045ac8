"""What ``cgtool run`` keeps of a program: every graph that its processes captured, and its life.

``Capture.graphs`` has the nodes; a ``LedgerGraph`` says who made a graph, how often it was replayed
and how it ended. Times count from the start of the command.
"""

from __future__ import annotations

import msgspec

from cgtool.model.schema import (
    Bytes,
    Count,
    DurationNs,
    FrameIndex,
    GraphIndex,
    LedgerGraphIndex,
    ProcessIndex,
    Signed,
)

COMPILE = "torch.compile"
"""The owner of graphs that compiled code captures."""


class Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Python process of the program that imported PyTorch."""

    pid: Count
    parent: Count
    command: tuple[str, ...]
    """Its command line."""
    began_ns: DurationNs
    """When it imported PyTorch."""
    ended_ns: DurationNs | None = None
    """None if it did not end by itself: its last words are missing."""
    forked: bool = False
    """It is a copy of its parent, made without starting Python anew."""


class ReplayPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line that replays a graph."""

    frames: tuple[FrameIndex, ...]
    """The calls that lead to it, innermost first."""
    seen: Count
    """Of the replays whose line was looked up: the first 64 of a graph, and every 32nd."""


class Diagnosis(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What ended a capture, as a finding says it."""

    code: str
    reason: str
    fix: str | None
    frames: tuple[FrameIndex, ...]
    """The calls that lead to the error, innermost first."""


class LedgerGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """One graph, from its capture to its end."""

    process: ProcessIndex
    number: Count
    """Of the captures of its process, from 0."""
    owner: str
    """What made it: ``torch.compile``, ``make_graphed_callables``, or the function that captured
    it."""
    key: str = ""
    """What its owner calls it: ``0/1 forward``, of a function compiled with ``torch.compile``."""
    because: str | None = None
    """Why the graph that there was could not be replayed, in the words of ``torch.compile``."""
    graph: GraphIndex | None = None
    """Its nodes; None if the capture failed, or nobody could read them."""
    frames: tuple[FrameIndex, ...] = ()
    """The calls that lead to its capture, innermost first."""
    thread: str = ""
    mode: str = ""
    """The capture error mode: ``global``, ``thread_local``, ``relaxed``."""
    pool: tuple[Signed, Signed] | None = None
    began_ns: DurationNs = 0
    capture_ns: DurationNs = 0
    """From begin to end of the capture, instantiation included."""
    instantiate_ns: DurationNs | None = None
    """Part of ``capture_ns``: the end of the capture, which instantiates the graph."""
    collector_ns: DurationNs = 0
    """Part of ``capture_ns``: Python's garbage collector."""
    cgtool_ns: DurationNs = 0
    """Time that cgtool took to read the graph, which is not part of ``capture_ns``."""
    reserved_bytes: Bytes | None = None
    """What PyTorch's allocator reserved from the device during the capture."""
    failure: str | None = None
    """The error that ended the capture."""
    diagnosis: Diagnosis | None = None
    """What the error means, if it is about the capture."""
    replays: Count = 0
    first_replay_ns: DurationNs | None = None
    last_replay_ns: DurationNs | None = None
    replay_host_ns: DurationNs = 0
    """Host time of all replays."""
    replayed_at: tuple[ReplayPlace, ...] = ()
    holds_a_pool: bool = False
    """It is empty: ``torch.compile`` captures one to keep its pool of memory, and replays none."""
    end: str | None = None
    """``reset`` or ``freed``; None if it was there until the process ended."""
    ended_ns: DurationNs | None = None
    same_as: LedgerGraphIndex | None = None
    """An earlier graph of the process with the same nodes and edges, parameters apart."""

    @property
    def uses(self) -> int:
        """Its replays, without the one with which ``torch.compile`` ends a recording."""
        return max(self.replays - (self.owner == COMPILE and self.key != ""), 0)

    @property
    def is_unused(self) -> bool:
        """It could be replayed and never was."""
        return self.failure is None and self.uses == 0 and not self.holds_a_pool


class Skip(msgspec.Struct, frozen=True, omit_defaults=True):
    """``torch.compile`` did not capture, or captured again, and why."""

    process: ProcessIndex
    reason: str
    times: Count = 1


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """The graphs of a program."""

    command: tuple[str, ...]
    wall_ns: DurationNs
    exit_status: Signed | None
    """As of a shell: 128 and the number of the signal that ended it. None if cgtool was ended
    before the program."""
    processes: tuple[Process, ...] = ()
    graphs: tuple[LedgerGraph, ...] = ()
    skips: tuple[Skip, ...] = ()
    lost: tuple[str, ...] = ()
    """A sentence for everything that could not be recorded."""
