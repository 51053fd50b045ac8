"""What one process of a recorded program notes in its journal."""

from __future__ import annotations

import functools
import operator
from typing import Any

import msgspec

from cgtool.model.capture import Edge, Environment, Frame, Function, Node, Origin
from cgtool.model.finding import Finding
from cgtool.model.ledger import ArgumentSize, Collective, MemoryUse, NodeFailure


class Record(msgspec.Struct, array_like=True):
    """An entry of the log."""


class Began(Record, tag="began"):
    """A process has imported PyTorch."""

    began_ns: int
    pid: int
    parent: int
    command: tuple[str, ...]
    forked: bool
    simulated: bool = False
    """Its device is the simulated one."""
    rank: int | None = None
    """This and the next: as the environment has them."""
    world_size: int | None = None


class Ranked(Record, tag="ranked"):
    """``torch.distributed`` is initialized."""

    rank: int
    world_size: int


class Machine(Record, tag="machine"):
    """Where the process captures; written before its first capture."""

    environment: Environment


class NeedsRecorder(Record, tag="needs-recorder"):
    """The process uses a GPU, and the recorder in C++ is missing."""

    python: str
    """Path of the interpreter; empty if it is not known."""


class Entering(Record, tag="entering"):
    """The process has loaded: it is about to capture for the first time."""

    time_ns: int


class Capturing(Record, tag="capturing"):
    """A capture has begun."""

    began_ns: int
    number: int
    owner: str
    key: str
    because: str | None
    frames: tuple[Frame, ...]
    thread: str
    mode: str
    stream: int | None = None


class Tables(Record, tag="tables"):
    """Entries that the next records refer to; they follow those of the ``Tables`` before."""

    frames: tuple[Frame, ...] = ()
    origins: tuple[Origin, ...] = ()
    functions: tuple[Function, ...] = ()


class Captured(Record, tag="captured"):
    """A capture has ended, or was refused."""

    number: int
    capture_ns: int = 0
    instantiate_ns: int = 0
    collector_ns: int = 0
    cgtool_ns: int = 0
    pool: tuple[int, int] | None = None
    reserved_bytes: int | None = None
    failure: str | None = None
    diagnosis: Finding | None = None
    prepare_ns: int | None = None
    warm_up_ns: int | None = None
    compile_ns: int = 0
    exec_bytes: int | None = None
    owner: str = ""
    frames: tuple[Frame, ...] = ()
    """The function that captured, if it is not what called ``capture_begin``: a function that is
    over when the capture ends has only begun it."""
    overlaps: bool = False
    ops_in_python: bool = False
    """Its ops were noted in Python, because the recorder in C++ was missing."""
    pool_bytes: int | None = None
    pool_used_bytes: int | None = None


class GraphRead(Record, tag="graph-read"):
    """The nodes of a captured graph, written some time after its capture."""

    number: int
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    cgtool_ns: int
    """How long it took after the capture."""
    uses: tuple[MemoryUse, ...] = ()
    """Of the memory that it has not allocated, by the numbers of ``MemoryUsed``."""
    collectives: tuple[tuple[Collective, int], ...] = ()
    """In order, with their sizes; none has an origin yet."""


class MemoryUsed(Record, tag="memory-used"):
    """Memory that graphs use and have not allocated."""

    number: int
    address: int
    bytes: int
    name: str
    kind: str
    allocated: tuple[Frame, ...] = ()


class MemoryGone(Record, tag="memory-gone"):
    """It was given back, as ``LedgerMemory.how`` says."""

    number: int
    gone_ns: int
    how: str
    frames: tuple[Frame, ...]
    replays: dict[int, int]
    """Of each graph that uses it, until then."""


class MemoryBack(Record, tag="memory-back"):
    """Memory that was given back is there again, at the same address, and no graph that uses it was
    replayed meanwhile."""

    number: int


class PoolSizes(msgspec.Struct, array_like=True):
    """Bytes that a pool reserved for one stream of one device."""

    pool: tuple[int, int]
    device: int
    stream: int
    segments: int
    reserved_bytes: int
    used_bytes: int


class Pools(Record, tag="pools"):
    """The pools of graphs that are about to end, or that are there at the end of the process."""

    time_ns: int
    sizes: tuple[PoolSizes, ...]


class Unseen(Record, tag="unseen"):
    """A graph whose capture was not seen is replayed."""

    began_ns: int
    number: int


class Noted(Record, tag="noted"):
    """Something was noted for a replay that is new for the graph. What could not be kept apart from
    others has no values."""

    number: int
    """Number of the counter in the file ``NOTES``."""
    graph: int
    values: dict[str, float | str]


class CallOfCode(msgspec.Struct, array_like=True):
    """As ``ledger.CodeCall``."""

    name: str
    code: Frame
    sizes: tuple[ArgumentSize, ...] | None


class StepCaptured(Record, tag="step-captured"):
    """The code that a graph captured."""

    number: int
    """Of the graph."""
    step: int
    calls: tuple[CallOfCode, ...]
    key: str
    """What the program noted for the warm-up, which was a run outside graphs until now."""


class StepRan(Record, tag="ran-eagerly"):
    """Code that was captured has run, from a line, with sizes or with notes that are new. What
    could not be kept apart from others has neither."""

    number: int
    """Number of the counter in the file ``NOTES``."""
    step: int
    call: CallOfCode
    frames: tuple[Frame, ...]
    values: dict[str, float | str]
    in_pieces: bool


class Stepped(Record, tag="stepped"):
    """The replays of a graph run node by node, or whole, and why."""

    number: int
    whole: str | None


class NodeFailed(Record, tag="node-failed"):
    """A node of a graph has failed."""

    number: int
    node_failure: NodeFailure


class Replayed(Record, tag="replayed"):
    """A line that replays a graph, each time that its count has doubled."""

    number: int
    frames: tuple[Frame, ...]
    seen: int


class GraphEnded(Record, tag="graph-ended"):
    """A graph was reset or freed."""

    ended_ns: int
    number: int
    end: str


class Skipped(Record, tag="skipped"):
    """``torch.compile`` did not capture, or captured again."""

    reason: str


class Lost(Record, tag="lost"):
    """Something could not be recorded."""

    reason: str
    captures: bool = False
    """A capture, or its end, may be missing."""


class Happened(Record, tag="event"):
    """The program has marked a moment (``cgtool.event``)."""

    time_ns: int
    name: str
    frames: tuple[Frame, ...]
    replays: int
    """Replays of the process so far."""
    weights: int | None
    """As of ``ledger.Event``."""
    rebound: int | None
    rewritten: int | None


class Compiled(Record, tag="compiled"):
    """A function or a kernel was compiled."""

    began_ns: int
    """When that began."""
    duration_ns: int
    compiler: str
    name: str
    because: str | None
    frames: tuple[Frame, ...]


class Allocated(Record, tag="allocated"):
    """PyTorch's allocator has reserved a segment of memory on the device (``cudaMalloc``)."""

    time_ns: int
    bytes: int
    device: int
    frames: tuple[Frame, ...]


class Stacks(Record, tag="stacks"):
    """The process hangs (``--watchdog``): what its threads run."""

    time_ns: int
    threads: tuple[tuple[str, tuple[Frame, ...]], ...]
    """The name of each, and its frames, innermost first; the main thread first."""
    begun: int
    """Replays that had begun."""
    entering: tuple[str, ...] = ()
    """The names of the threads that wait in ``torch.cuda.graph`` before a capture."""


class Finished(Record, tag="finished"):
    """The process ends by itself."""

    ended_ns: int
    error: str = ""
    """The exception that ends it."""


ANY_RECORD: Any = functools.reduce(operator.or_, Record.__subclasses__())
"""The type of any record, to decode."""
