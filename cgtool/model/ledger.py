"""The ledger of a program under ``cgtool run``: every graph that its processes captured, and its
life.

``Capture.graphs`` has the nodes; a ``LedgerGraph`` says who made a graph, how often it was replayed
and how it ended. Times count from the start of the command.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from cgtool.model.schema import (
    Address,
    Bytes,
    CollectivesIndex,
    Count,
    DurationNs,
    FrameIndex,
    GraphIndex,
    LedgerGraphIndex,
    LedgerMemoryIndex,
    Noted,
    NotedText,
    OriginIndex,
    PoolIndex,
    ProcessIndex,
    Signed,
)

COMPILE = "torch.compile"
"""The owner of graphs that compiled code captures."""
CALLABLES = "make_graphed_callables"
"""The owner of graphs that this function captures."""
RESET = "reset"
"""The end of graphs that the program resets, and why it captures them again."""
UNSEEN = "unknown"
"""The owner of graphs whose capture was not seen."""

READY = "ready"
"""The event that ``cgtool run --ready-after`` and ``--ready-output`` mark."""


class ThreadStack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a thread ran."""

    name: str
    """Empty for one that Python did not start."""
    frames: tuple[FrameIndex, ...]
    """Innermost first, without those of PyTorch."""
    enters: bool = False
    """It waited in ``torch.cuda.graph``, before a capture."""


class Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Python process of the program that imported PyTorch."""

    pid: Count
    parent: Count
    command: tuple[str, ...]
    """Its command line."""
    began_ns: DurationNs
    """When it imported PyTorch."""
    ended_ns: DurationNs | None = None
    """None if it was killed or still ran: its last records may be missing."""
    forked: bool = False
    """It was forked from its parent, without starting a new interpreter."""
    rank: Count | None = None
    """Its rank among ``world_size`` processes: of ``torch.distributed``, or of the environment that
    a launcher has set. None if it has none."""
    world_size: Count | None = None
    error: str = ""
    """The exception that ended it."""
    last_replays: tuple[Count, ...] = ()
    """Of a rank: the numbers of the graphs that it replayed last, the oldest first."""
    stacks: tuple[ThreadStack, ...] = ()
    """What its threads ran when nothing moved any more (``--watchdog``), the main thread first."""
    begun: Count = 0
    """Of a rank: the replays that have begun, those included that did not return."""
    graphs_gpu_ns: DurationNs | None = None
    """GPU time inside graphs (``--times``): the sum of all replays, as ``replay_gpu_ns``."""
    other_gpu_ns: DurationNs | None = None
    """GPU time outside graphs (``--times``): the sum of all kernels, copies and fills."""


class ReplayPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line that replays a graph."""

    frames: tuple[FrameIndex, ...]
    """The calls that lead to it, innermost first."""
    seen: Count
    """Replays whose line was looked up: the first 8 of a graph, every 31st up to 1,000, and
    every 499th after that."""


class NotedReplays(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The replays of a graph for which the program noted the same (``cgtool.note``)."""

    names: tuple[str, ...]
    values: tuple[Noted, ...]
    """One for each name. Without names and texts: the graph had too many different notes to count
    each."""
    replays: Count
    texts: tuple[tuple[str, NotedText], ...] = ()
    """Names, and the texts noted for them."""


class ArgumentSize(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The size of an argument."""

    name: str
    shape: tuple[Count, ...]
    """Of a tensor."""
    value: Count | None = None
    """Of an integer."""


class CodeCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call of code that a graph captured: in the capture, or outside graphs."""

    name: str
    """``Decoder.forward``."""
    code: FrameIndex
    """The first line of the function."""
    sizes: tuple[ArgumentSize, ...] | None
    """Of its tensors, or if it gets none, of its integers. None if they are not known."""


class StepRuns(msgspec.Struct, frozen=True, omit_defaults=True):
    """Calls of code that was captured before, which no graph of that code replaced: from one line,
    with the same sizes, for which the program noted the same. Those that a capture followed, as
    warm-up, are left out."""

    process: ProcessIndex
    step: Count
    """The number of the code: as ``LedgerGraph.step``."""
    call: CodeCall
    frames: tuple[FrameIndex, ...]
    """The calls that lead to the first of them, innermost first."""
    runs: Count
    names: tuple[str, ...] = ()
    values: tuple[Noted, ...] = ()
    """The numbers that were noted: one for each name."""
    texts: tuple[tuple[str, NotedText], ...] = ()
    """Names, and the texts noted for them."""
    in_pieces: bool = False
    """Graphs of pieces of the code were replayed in them. Otherwise, they ran eagerly."""


class ReplayMoment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many replays a graph had at a moment."""

    time_ns: DurationNs
    replays: Count


class Diagnosis(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The finding on the cause that ended a capture."""

    code: str
    reason: str
    fix: str | None
    frames: tuple[FrameIndex, ...]
    """The calls that lead to the error, innermost first."""


class NodeFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node that failed in a replay (``--step``)."""

    node: Count
    """Its number in the graph."""
    replay: Count
    """The number of the replay, from 1."""
    error: str
    """The first line of the error that the program got."""
    evidence: tuple[str, ...]
    """Its kernel and launch, and where its pointers led at that moment."""


class LedgerMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory that a graph uses and has not allocated itself: the storage of some tensors."""

    process: ProcessIndex
    address: Address
    bytes: Bytes
    name: str = ""
    """What the program calls a tensor there: ``self.model.layers.0.weight``; empty if no name leads
    to it."""
    kind: str = ""
    """``pool`` for what lies in the pool of a graph; else ``parameter``, ``buffer``, ``gradient``,
    ``optimizer state``, ``variable``, empty without a name."""
    gone_ns: DurationNs | None = None
    """When it was given back while a graph that uses it could be replayed; None if it was not."""
    how: str = ""
    """``freed``; ``collected``, if Python's garbage collector has freed it; ``resized``."""
    frames: tuple[FrameIndex, ...] = ()
    """The calls that gave it back, innermost first."""
    allocated: tuple[FrameIndex, ...] = ()
    """The calls that allocated it, innermost first, where PyTorch kept them."""


class MemoryUse(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a graph does with memory that it has not allocated itself."""

    memory: LedgerMemoryIndex
    reads: tuple[Count, ...]
    """The nodes of the ops that read it."""
    writes: tuple[Count, ...]
    replays: Count | None = None
    """Replays of the graph until the memory was given back: those that follow use what is there
    now. None if it was not while the graph could be replayed."""


class Communicator(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A process group, whose ranks run collectives together."""

    name: str
    """PyTorch's name of the group."""
    ranks: tuple[Count, ...]
    """The ranks in it, among all; empty if they are not known."""


class Collective(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A collective of a graph."""

    kind: str
    """``all_reduce``, ``all_gather``, ..."""
    communicator: Communicator
    dtype: str
    """Empty for those without data."""
    root: Count | None = None
    """The rank in the group that is its root."""
    waits: bool = False
    """What follows on the stream that captures waits for it (``async_op=False``)."""
    origin: OriginIndex | None = None


class Collectives(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The collectives of a graph without their sizes, in the order in which they were captured:
    many graphs differ in these alone."""

    each: tuple[Collective, ...]


class LedgerGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """One graph, from its capture to its end."""

    process: ProcessIndex
    number: Count
    """Its number among the captures of its process, from 0."""
    owner: str
    """Its maker: ``torch.compile``, ``make_graphed_callables``, or the function that captured
    it."""
    key: str = ""
    """Its owner's name for it: ``0/1 forward``, of a function compiled with ``torch.compile``;
    ``forward`` or ``backward``, of a graphed callable; sizes that the program noted."""
    because: str | None = None
    """Why it was captured again: why the graph before could not be replayed, in the words of
    ``torch.compile``, or ``reset``, if the program has reset its ``CUDAGraph``."""
    graph: GraphIndex | None = None
    """Its nodes; None if the capture failed, or they could not be read."""
    frames: tuple[FrameIndex, ...] = ()
    """The calls that lead to its capture, innermost first."""
    thread: str = ""
    mode: str = ""
    """The capture error mode: ``global``, ``thread_local``, ``relaxed``."""
    stream: Address | None = None
    """The handle of the stream that was captured."""
    pool: tuple[Signed, Signed] | None = None
    began_ns: DurationNs = 0
    capture_ns: DurationNs = 0
    """From begin to end of the capture, instantiation included."""
    instantiate_ns: DurationNs | None = None
    """Part of ``capture_ns``: the end of the capture, which instantiates the graph."""
    collector_ns: DurationNs = 0
    """Part of ``capture_ns``: Python's garbage collector."""
    compile_ns: DurationNs = 0
    """Part of ``capture_ns``: Triton and Inductor, which compile, tune and load kernels."""
    prepare_ns: DurationNs | None = None
    """Before ``capture_ns``: ``torch.cuda.graph`` waits for the device, and empties caches. None
    if the program calls ``capture_begin`` itself."""
    warm_up_ns: DurationNs | None = None
    """Before that: the run of a function that ``torch.compile`` captures next, or the iterations of
    ``make_graphed_callables``, for the first graph of a call. None if the warm-up is the program's
    own."""
    cgtool_ns: DurationNs = 0
    """Time that cgtool took to read the graph, which is not part of ``capture_ns``."""
    reserved_bytes: Bytes | None = None
    """Bytes that PyTorch's allocator reserved from the device during the capture."""
    pool_bytes: Bytes | None = None
    """Bytes that its pool had reserved when it was captured; None if that is not known."""
    pool_used_bytes: Bytes | None = None
    """Those of them that were in use; later captures use the others."""
    overlaps: bool = False
    """Another capture of the process was in progress meanwhile: ``reserved_bytes`` has what both
    reserved."""
    failure: str | None = None
    """The error that ended the capture."""
    diagnosis: Diagnosis | None = None
    """The meaning of the error, if it is about the capture."""
    replays: Count = 0
    first_replay_ns: DurationNs | None = None
    last_replay_ns: DurationNs | None = None
    moments: tuple[ReplayMoment, ...] = ()
    """Before and after each change of the number of replays, between the first and the last, as
    `cgtool run` saw it from outside at up to a hundred moments."""
    replay_host_ns: DurationNs = 0
    """Host time of all replays."""
    first_replay_host_ns: DurationNs | None = None
    """Part of ``replay_host_ns``: the first replay, which uploads the executable graph."""
    timed_replays: Count = 0
    """The replays that have a GPU time (``--times``)."""
    replay_gpu_ns: DurationNs = 0
    """GPU time of these replays: each from the start of its first node to the end of its last."""
    replayed_at: tuple[ReplayPlace, ...] = ()
    holds_a_pool: bool = False
    """Whether it is the empty graph that ``torch.compile`` captures to keep its memory pool, and
    never replays."""
    end: str | None = None
    """``reset`` or ``freed``; None if it existed until the process ended."""
    ended_ns: DurationNs | None = None
    same_as: LedgerGraphIndex | None = None
    """An earlier graph of the process with the same nodes and edges, parameters apart."""
    notes: tuple[NotedReplays, ...] = ()
    """What the program noted for its replays."""
    memory: tuple[MemoryUse, ...] = ()
    """The memory that its ops use and that it has not allocated."""
    step: Count | None = None
    """The code that it captured, by a number in its process: the same for graphs that captured it
    with other sizes. None if no call contained most of its ops."""
    calls: tuple[CodeCall, ...] = ()
    """The calls of that code in the capture, outermost first."""
    stepped: bool = False
    """Its replays ran node by node (``--step``)."""
    whole: str | None = None
    """With ``--step``: why they did not."""
    node_failure: NodeFailure | None = None
    nodes: Count | None = None
    """How many nodes it has; None if they could not be read."""
    collectives: CollectivesIndex | None = None
    collective_bytes: tuple[Bytes, ...] = ()
    """Of each collective, the bytes of the tensors that are as large on every rank: what is
    reduced, or the whole that is gathered or scattered. Of an all-to-all: 0."""
    uncounted: bool = False
    """Its replays are not known: the file of the counters could not grow, on a full disk."""

    @property
    def counted(self) -> int | None:
        """Its replays; None if they are not known."""
        return None if self.uncounted else self.replays

    @property
    def uses(self) -> int:
        """Its replays, without the one with which ``torch.compile`` ends a recording."""
        return max(self.replays - (self.owner == COMPILE and self.key != ""), 0)

    def stale_replays(self, memories: Container[int] | None = None) -> int:
        """Those since memory that it uses was given back: one of these, or any."""
        uses = (use for use in self.memory if memories is None or use.memory in memories)
        before = (use.replays for use in uses if use.replays is not None)
        return max(self.replays - min(before, default=self.replays), 0)

    @property
    def is_unused(self) -> bool:
        """It could be replayed and never was."""
        known = self.failure is None and not self.uncounted
        return known and self.uses == 0 and not self.holds_a_pool


class PoolStream(msgspec.Struct, frozen=True, omit_defaults=True):
    """The memory of a pool for one stream: no other stream can use its free blocks."""

    device: Count
    stream: Address
    segments: Count
    reserved_bytes: Bytes
    used_bytes: Bytes
    """In blocks that are allocated, or that wait for an event before they are free."""


class LedgerPool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory pool of graphs, when its last graph ended, or else at the end of its process."""

    process: ProcessIndex
    pool: PoolIndex
    read_ns: DurationNs
    streams: tuple[PoolStream, ...]


class Skip(msgspec.Struct, frozen=True, omit_defaults=True):
    """``torch.compile`` did not capture, or captured again, and why."""

    process: ProcessIndex
    reason: str
    times: Count = 1


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A moment that the program has marked (``cgtool.event``), or an option of ``cgtool run``."""

    process: ProcessIndex
    name: str
    time_ns: DurationNs
    frames: tuple[FrameIndex, ...] = ()
    """The calls that lead to it, innermost first."""
    replays: Count | None = 0
    """Replays of its process before it; None if they are not known."""
    output: str = ""
    """The line of the program's output that it was found by."""
    weights: Count | None = None
    """Parameters, buffers and optimizer state that graphs use; None if nobody has looked."""
    rebound: Count | None = None
    """Those of them for which the program has other memory by now than its graphs use."""
    rewritten: Count | None = None
    """Of the others, those with other values than at the event before at which they were read; None
    if none could be read."""


class Compile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that ``torch.compile`` compiled, or a kernel that Triton compiled or tuned."""

    process: ProcessIndex
    began_ns: DurationNs
    duration_ns: DurationNs
    compiler: str
    """``torch.compile`` or ``Triton``."""
    name: str = ""
    because: str | None = None
    """Why ``torch.compile`` compiled it again."""
    frames: tuple[FrameIndex, ...] = ()
    """The calls that lead to it, innermost first."""


class DeviceAllocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory that PyTorch's allocator reserved from the device at once (``cudaMalloc``)."""

    process: ProcessIndex
    time_ns: DurationNs
    bytes: Bytes
    device: Count = 0
    frames: tuple[FrameIndex, ...] = ()
    """The calls that lead to it, innermost first; empty if they are not known."""


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """The graphs of a program."""

    command: tuple[str, ...]
    wall_ns: DurationNs
    exit_status: Signed | None
    """As in a shell: 128 plus the number of the signal that ended it. None if cgtool ended before
    the program."""
    processes: tuple[Process, ...] = ()
    graphs: tuple[LedgerGraph, ...] = ()
    collectives: tuple[Collectives, ...] = ()
    skips: tuple[Skip, ...] = ()
    events: tuple[Event, ...] = ()
    """In order of time."""
    compiles: tuple[Compile, ...] = ()
    allocations: tuple[DeviceAllocation, ...] = ()
    step_runs: tuple[StepRuns, ...] = ()
    pools: tuple[LedgerPool, ...] = ()
    memory: tuple[LedgerMemory, ...] = ()
    lost: tuple[str, ...] = ()
    """A sentence for everything that could not be recorded."""
    incomplete: bool = False
    """Captures may be among it: there may have been more than ``graphs`` has."""

    @property
    def unread(self) -> int:
        """Graphs that were captured, and whose nodes were not recorded."""
        return sum(
            each.graph is None and each.failure is None and each.owner != UNSEEN
            for each in self.graphs
        )

    @property
    def stepped(self) -> bool:
        """Replays ran node by node (``--step``)."""
        return any(each.stepped for each in self.graphs)

    @property
    def failed_early(self) -> bool:
        """It ended with an error, or cgtool before it, before any replay: that graphs were not
        replayed says nothing about them."""
        return self.exit_status != 0 and not any(
            each.uses or each.uncounted for each in self.graphs
        )

    @property
    def graphs_gpu_ns(self) -> int | None:
        """GPU time inside graphs, of all processes; None without ``--times``."""
        known = [each.graphs_gpu_ns for each in self.processes if each.graphs_gpu_ns is not None]
        return sum(known) if known else None

    @property
    def gpu_ns(self) -> int | None:
        """GPU time of all processes, inside and outside graphs; None without ``--times``."""
        inside = self.graphs_gpu_ns
        return None if inside is None else inside + sum(p.other_gpu_ns or 0 for p in self.processes)
