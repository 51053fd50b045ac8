"""The contents of one capture. Everything that a table or a picture shows is made from this.

All structs are frozen plain data: no torch object, no handle, no pointer that means anything
outside the record. The type of a field says its unit, its range, and the list that an index refers
to (``cgtool.model.schema``). docs/capture-format.md is generated from types and docstrings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cgtool.model.ledger import Ledger
from cgtool.model.measurements import Bench, Profile
from cgtool.model.schema import (
    COMPARED,
    IN_BOX,
    UNLISTED,
    Address,
    AllocationIndex,
    ArgumentListIndex,
    Byte,
    Bytes,
    Count,
    Dim3,
    DurationNs,
    FrameIndex,
    FunctionIndex,
    GraphIndex,
    NodeId,
    OriginIndex,
    PoolIndex,
    Signed,
    StreamIndex,
    TensorIndex,
)

SCHEMA_VERSION = 1

UNCOMPILED = "uncompiled"
"""Caveat of a simulated capture: it has code of ``torch.compile``, which compiled nothing."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One Python frame."""

    file: str
    line: Count
    function: str

    @property
    def short(self) -> str:
        """``model.py:5``, for a sentence."""
        return f"{Path(self.file).name}:{self.line}"


class SourceBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive lines of a source file."""

    first: Count
    """Number of its first line, from 1."""
    lines: tuple[str, ...]


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that frames are in, as it was when the code ran: all of it, or the lines around its
    frames if it is an installed library's or a large one."""

    file: str
    """As in ``Frame.file``."""
    blocks: tuple[SourceBlock, ...] = ()
    absent: str | None = None
    """Why there are no lines, if there are none."""


Frames = tuple[Frame, ...]
"""A call chain, innermost first; () if it is unknown."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Where a node comes from: interned, so that all nodes of one op at one line share it."""

    op: str | None = None
    """Qualified name of the ATen op (``aten::addmm``, ``aten::add.Tensor``); None when the node
    was launched outside any op (a Triton kernel, a custom extension)."""
    module: str | None = None
    """Path of the innermost ``nn.Module`` (``layers.0.linear1``); ``""`` is the root module, None
    means that no module was running."""
    module_type: str | None = None
    frames: tuple[FrameIndex, ...] = ()
    """The Python call chain outside torch, innermost first."""
    autograd_node: str | None = None
    """The autograd node that ran in backward (``AddmmBackward0``)."""
    forward: OriginIndex | None = None
    """In backward: the origin of the forward op that created the autograd node; always an earlier
    one."""
    annotations: tuple[str, ...] = ()
    """Ranges open around the op, outermost first: the user's own, and those that PyTorch opens in
    Python (``Optimizer.step#AdamW.step``)."""


class PointerArgument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An eight-byte word of a kernel's arguments that is an address which the recorder knows."""

    parameter: Count
    """Number of the kernel parameter, from 0."""
    offset: Count
    """Bytes into that parameter (structs are passed by value)."""
    address: Address
    allocation: AllocationIndex | None = None
    """Memory allocated while capturing."""
    tensor: TensorIndex | None = None
    """A tensor that existed before the capture."""


class KernelLaunch(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The parameters of a kernel node."""

    function: FunctionIndex
    grid: Annotated[Dim3, IN_BOX, COMPARED]
    block: Annotated[Dim3, IN_BOX, COMPARED]
    dynamic_shared_bytes: Annotated[Bytes, Meta(title="dynamic shared memory"), COMPARED] = 0
    active_blocks: Annotated[Count | None, Meta(title="active blocks per multiprocessor")] = None
    """Blocks that fit on one multiprocessor at once, by
    cuOccupancyMaxActiveBlocksPerMultiprocessor."""
    pointers: tuple[PointerArgument, ...] = ()
    arguments_unread: str | None = None
    """Why the arguments could not be read, if they could not."""


class Copy(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A memcpy node."""

    kind: Annotated[str, UNLISTED]
    """``dtod``, ``htod``, ``dtoh``, ``htoh`` or ``array``."""
    bytes: Annotated[Bytes, Meta(title=""), IN_BOX, COMPARED]
    source: Address = 0
    destination: Address = 0
    source_allocation: AllocationIndex | None = None
    source_tensor: TensorIndex | None = None
    destination_allocation: AllocationIndex | None = None
    destination_tensor: TensorIndex | None = None


class Fill(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A memset node."""

    bytes: Annotated[Bytes, Meta(title=""), IN_BOX, COMPARED]
    value: Annotated[Signed, Meta(title="set to"), IN_BOX, COMPARED]
    destination: Address = 0
    destination_allocation: AllocationIndex | None = None
    destination_tensor: TensorIndex | None = None


class TensorValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The numbers of a tensor that a node has written, at the moment when it had run."""

    name: str
    """``out``, ``out1``, ..., or the argument that the op writes: ``in0``."""
    dtype: str
    shape: tuple[Count, ...]
    minimum: float | None = None
    """Of the finite numbers, like the next three; None if there is none."""
    maximum: float | None = None
    mean: float | None = None
    norm: float | None = None
    """Square root of the sum of squares."""
    zeros: Count = 0
    nans: Count = 0
    infinities: Count = 0
    first: tuple[Count, ...] | None = None
    """Index of the first NaN, else of the first infinity."""
    digest: Signed = 0
    """Equal for equal bits, on all devices."""

    @property
    def is_floating(self) -> bool:
        """Seeds, indices and masks are not: their range says nothing."""
        return self.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def numbers(self) -> int:
        """A complex one is two."""
        return math.prod(self.shape) * (1 + self.dtype.startswith("complex"))

    @property
    def finite(self) -> int:
        """How many of them are."""
        return self.numbers - self.nans - self.infinities

    @property
    def type(self) -> str:
        """``float32[8,64]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Node(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One node of a graph."""

    id: Annotated[Count, UNLISTED]
    """Position in creation order, from 0: the driver's own number of the node."""
    type: Annotated[str, UNLISTED]
    """``kernel``, ``memcpy``, ``memset``, ``host``, ``child``, ``empty``, ``event_wait``,
    ``event_record``, ``semaphore_signal``, ``semaphore_wait``, ``alloc``, ``free``,
    ``batch_mem_op``, ``conditional``, ``type_<n>`` for a number that this cgtool does not know,
    or, on the simulated device only, ``op``: one ATen op that would launch device work."""
    origin: OriginIndex | None = None
    call: Annotated[Count | None, UNLISTED] = None
    """Number of the op call in its graph: nodes of one call share it. Index into ``Graph.calls``
    where that is not empty."""
    stream: StreamIndex | None = None
    """The stream that it was captured on."""
    kernel: KernelLaunch | None = None
    copy: Copy | None = None
    fill: Fill | None = None
    body: tuple[GraphIndex, ...] = ()
    """The graphs that a child or conditional node runs; they come later in the list."""
    duration_ns: Annotated[DurationNs | None, UNLISTED] = None
    """GPU time of the node in one replay, median of several, where it was measured."""
    start_ns: Annotated[DurationNs | None, UNLISTED] = None
    """Its start in one replay, median of several, from the start of the graph's first node."""
    shape: Annotated[str | None, Meta(title=""), IN_BOX, COMPARED] = None
    """Simulated device: the op's outputs, as ``float32[4,16,64]``."""
    values: Annotated[tuple[TensorValues, ...], UNLISTED] = ()
    """Of the tensors that its op has written, where this is the last node of the op and ``cgtool
    debug`` has looked at them."""
    detail: Annotated[str | None, Meta(title=""), IN_BOX] = None
    """Anything else worth a line (host function, event, unread parameters and why)."""


class Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``target`` waits for ``source``. The edges of a graph make no cycle."""

    source: NodeId
    target: NodeId
    from_port: Byte = 0
    """Which event of a kernel: 0 full completion, 1 programmatic, 2 launch order."""
    to_port: Byte = 0
    type: Byte = 0
    """0 an ordinary dependency, 1 programmatic (the two kernels may overlap)."""

    @property
    def kind(self) -> str:
        """``full``, ``programmatic``, or ``launch order``: after all blocks of the source began."""
        if self.type == 0 and self.from_port == 0:
            return "full"
        return "launch order" if self.from_port == 2 else "programmatic"


Contents = tuple[tuple[Node, ...], tuple[Edge, ...]]
"""A graph as it is read."""


class Argument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One argument of an op."""

    name: str
    """Its name in the op's schema."""
    value: str
    """``2.0``; ``float32[16,4]``, with ``strides (1,16)`` if it is not contiguous and ``offset 3``
    if it does not begin where its storage does, both in elements; the value of a number on the
    host; several in brackets."""
    operands: Count = 0
    """Number of its tensors that have a storage: it takes that many of the next
    ``Call.operands``."""


class ArgumentList(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The arguments of an op call that differ from their defaults; equal calls share them."""

    arguments: tuple[Argument, ...]


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The accesses of one op call, as the recorder saw its arguments and results."""

    reads: tuple[Count, ...] = ()
    """Storages that it read. A number identifies one storage for its lifetime, in one graph and
    its backward: memory that is given out again is another storage."""
    writes: tuple[Count, ...] = ()
    """Storages that it wrote or created."""
    read_bytes: Bytes = 0
    """The bytes of the tensors that it read, each once."""
    written_bytes: Bytes = 0
    flops: Count | None = None
    """Floating-point operations by the formulas of ``torch.utils.flop_counter``; None for ops that
    it has no formula for."""
    dtype: str | None = None
    """The type of its first floating-point result: ``float32``, ``bfloat16``."""
    arguments: ArgumentListIndex | None = None
    operands: tuple[Count, ...] = ()
    """Storages of the tensors among its arguments, in order."""


class Graph(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured graph, or the body of a child or conditional node."""

    name: str
    """``forward``, ``backward``, ``step``; with several callables ``forward 0``, ...; a body is
    ``forward/node 12``."""
    phase: str
    """``forward``, ``backward`` or ``step``."""
    callable: Count = 0
    """Which of the workload's callables, in the order that the factory returned them."""
    pool: PoolIndex | None = None
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    parent: tuple[Count, Count] | None = None
    """For a body: index into ``Capture.graphs`` and id of the node there that runs it."""
    capture_ns: DurationNs | None = None
    """Host time from the begin to the end of the capture."""
    instantiate_ns: DurationNs | None = None
    upload_ns: DurationNs | None = None
    launch_ns: tuple[DurationNs, ...] = ()
    """Host time of single ``replay()`` calls on an idle stream."""
    exec_bytes: Bytes | None = None
    """Device memory that the driver took for the executable graph (cudaMemGetInfo before and
    after instantiate and upload)."""
    raw_dot: str | None = None
    """Name of the part of the file that holds the driver's debug_dump text."""
    eager_launches: Count | None = None
    """Kernels, copies and fills that the recorded eager iteration launched in this phase."""
    calls: tuple[Call, ...] = ()
    """Accesses of the op calls of its nodes."""

    @property
    def cost_ns(self) -> int:
        """Host time to capture, instantiate and upload it, as far as it is known."""
        return (self.capture_ns or 0) + (self.instantiate_ns or 0) + (self.upload_ns or 0)


class Module(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An ``nn.Module`` of the workload."""

    path: str
    type: str
    """Name of its class."""


class Function(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A kernel function, as cuFuncGetName and cuFuncGetAttribute report it."""

    name: Annotated[str, UNLISTED]
    """Mangled."""
    registers: Count | None = None
    """For one thread."""
    static_shared_bytes: Annotated[Bytes | None, Meta(title="static shared memory")] = None
    local_bytes: Annotated[Bytes | None, Meta(title="local memory"), UNLISTED] = None
    """For one thread."""
    max_threads_per_block: Annotated[Count | None, UNLISTED] = None
    binary_version: Annotated[Count | None, UNLISTED] = None
    """Compute capability that it was compiled for: 90 is 9.0."""
    parameter_bytes: Annotated[tuple[Bytes, ...], UNLISTED] = ()


class Stream(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream that took part in a capture. The first is the capturing stream. Of a program, these
    are the streams of a graph by their number in it: two graphs may mean different ones."""

    handle: Address
    name: str
    priority: Signed | None = None


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One lifetime of a block: allocated while a graph was being captured."""

    address: Address
    bytes: Bytes
    """Bytes of the block, as the allocator rounded them."""
    requested_bytes: Bytes
    pool: PoolIndex
    graph: GraphIndex
    """The graph that was being captured."""
    allocated_at: Count
    """Position in the sequence of allocator events of the whole capture, from 0."""
    freed_at: Count | None = None
    """Likewise; None when it is live at the end."""
    stream: StreamIndex | None = None
    origin: OriginIndex | None = None
    node: Count | None = None
    """Id of the first node created after the allocation, in ``graph``."""
    label: str | None = None
    """Its holder at the end: ``output[0]``, ``gradient of layers.0.weight``,
    ``cuBLAS workspace``."""


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block of a segment at the end of the capture, as ``memory_snapshot()`` lists it."""

    address: Address
    bytes: Bytes
    requested_bytes: Bytes
    state: str
    """``active_allocated``, ``active_awaiting_free``, ``active_pending_free`` or ``inactive``."""


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory that the allocator reserved with one cudaMalloc."""

    address: Address
    bytes: Bytes
    stream: StreamIndex | None
    size_class: str
    """``small`` or ``large``."""
    blocks: tuple[Block, ...] = ()
    expandable: bool = False


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory pool of the caching allocator."""

    id: tuple[Signed, Signed]
    """PyTorch's MempoolId_t."""
    name: str
    segments: tuple[Segment, ...] = ()


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory that existed before the capture and that the graphs read or write."""

    name: str
    """``parameter layers.0.weight``, ``buffer bn.running_mean``, ``input x``, ..."""
    kind: str
    """``parameter``, ``buffer``, ``input``, ``gradient``, ``optimizer``, ``freed`` (nothing
    referenced it when the capture ended) or ``other``."""
    address: Address
    bytes: Bytes
    shape: tuple[Count, ...] = ()
    dtype: str = ""
    storage: Count | None = None
    """Number of its storage in ``Call.reads``, ``writes`` and ``operands``."""


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The allocator's side of a capture."""

    pools: tuple[Pool, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    """In order of ``allocated_at``."""
    tensors: tuple[Tensor, ...] = ()
    exact: bool = True
    """False for the simulated device's model of the allocator."""


class Caveat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that the reader must know to judge what is shown."""

    code: str
    """Short and stable, for scripts: ``simulated``, ``ops-unmatched``, ..."""
    text: str


SIMULATED_OPS = (
    "ops and their order are real, but some that PyTorch chooses by device are the CPU's (a GPU "
    "may run `_fused_rms_norm`, `cudnn_batch_norm` or `_cudnn_rnn` instead)"
)
"""Which ops of a simulated capture are not those of a GPU."""


class Option(msgspec.Struct, frozen=True, array_like=True):
    """An option of the capture, as text."""

    name: str
    value: str


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entry point that the user named, and its options."""

    spec: str
    """``path/to/file.py:name``."""
    kind: str
    """``callable``, ``callables`` or ``step``."""
    file: str | None = None
    line: Count | None = None
    callables: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine and the software that made the capture."""

    device: str
    """The GPU's name, or ``simulated``."""
    simulated: bool = False
    torch: str = ""
    python: str = ""
    cuda_runtime: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    cuda_bindings: str | None = None
    compute_capability: tuple[Count, Count] | None = None
    multiprocessors: Count | None = None
    max_threads_per_multiprocessor: Count | None = None
    device_bytes: Bytes | None = None
    platform: str = ""
    cpu: str | None = None
    """The processor's name, as the operating system reports it."""
    cpus: Count | None = None
    """Processors that the process could use."""
    allocator_config: str | None = None


class CaptureHeader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a capture that the manifest of a file holds."""

    entry: Entry
    environment: Environment
    created: str
    """UTC, ISO 8601."""
    cgtool: str
    """Version that wrote the file."""
    warmup_iters: Count = 0
    """Eager iterations before the capture."""
    warmup_ns: DurationNs | None = None
    """Host time that they took."""
    recorder: str = ""
    """How the op of a node was found: ``node-callbacks``, ``in-capture`` (``frontier`` in older
    files), ``simulated``."""
    caveats: tuple[Caveat, ...] = ()

    @property
    def general_notes(self) -> tuple[str, ...]:
        """Notes that every table and picture of the capture shows."""
        return tuple(caveat.text for caveat in self.caveats if caveat.code == UNCOMPILED)


class Capture(CaptureHeader, frozen=True, omit_defaults=True):
    """All of it."""

    graphs: tuple[Graph, ...] = ()
    frames: tuple[Frame, ...] = ()
    sources: tuple[Source, ...] = ()
    """The files of the frames; () in captures of earlier versions, which did not save them."""
    origins: tuple[Origin, ...] = ()
    argument_lists: tuple[ArgumentList, ...] = ()
    modules: tuple[Module, ...] = ()
    functions: tuple[Function, ...] = ()
    streams: tuple[Stream, ...] = ()
    memory: Memory = Memory()
    bench: Bench | None = None
    profile: Profile | None = None
    ledger: Ledger | None = None
    """The ledger of a program that captured its graphs itself."""


def created_now() -> str:
    """``created`` of a capture that is made now."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def topological(count: int, edges: Sequence[Edge]) -> list[int] | None:
    """Node ids so that every edge leads forward; None when the edges make a cycle.

    Creation order is one for every graph that CUDA captured, and is taken when it is. Linear in
    nodes and edges.
    """
    if all(edge.source < edge.target for edge in edges):
        return list(range(count))
    waits = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for edge in edges:
        waits[edge.target] += 1
        after[edge.source].append(edge.target)
    order = [node for node in range(count) if waits[node] == 0]
    for node in order:
        for target in after[node]:
            waits[target] -= 1
            if waits[target] == 0:
                order.append(target)
    return order if len(order) == count else None
