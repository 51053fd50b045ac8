"""What one capture holds. Everything that a table or a picture shows is made from this.

All structs are frozen plain data: no torch object, no handle, no pointer that means anything
outside the record. Sizes are bytes, durations are nanoseconds, addresses are device virtual
addresses as plain integers. Where a field is an index, its comment names the list that it
points into.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cgtool.model.measurements import Bench, Profile

SCHEMA_VERSION = 1


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One Python frame."""

    file: str
    line: int
    function: str


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a node comes from: interned, so that all nodes of one op at one line share it."""

    op: str | None = None
    """Qualified name of the ATen op (``aten::addmm``, ``aten::add.Tensor``); None when the node
    was launched outside any op (a Triton kernel, a custom extension)."""
    module: str | None = None
    """Path of the innermost ``nn.Module`` (``layers.0.linear1``); ``""`` is the root module, None
    means that no module was running."""
    module_type: str | None = None
    frames: tuple[int, ...] = ()
    """The Python call chain outside torch, innermost first: indices into ``Capture.frames``."""
    autograd_node: str | None = None
    """The autograd node that ran in backward (``AddmmBackward0``)."""
    forward: int | None = None
    """In backward: the origin of the forward op that made the autograd node; index into
    ``Capture.origins``."""
    annotations: tuple[str, ...] = ()
    """Ranges open around the op, outermost first: the user's own, and those that PyTorch opens in
    Python (``Optimizer.step#AdamW.step``)."""


class PointerArgument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An eight-byte word of a kernel's arguments that is an address which the recorder knows."""

    parameter: int
    """Index of the kernel parameter."""
    offset: int
    """Bytes into that parameter (structs are passed by value)."""
    address: int
    allocation: int | None = None
    """Index into ``Memory.allocations``: memory allocated while capturing."""
    tensor: int | None = None
    """Index into ``Memory.tensors``: a tensor that lived before the capture."""


class KernelLaunch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parameters of a kernel node."""

    function: int
    """Index into ``Capture.functions``."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0
    active_blocks: int | None = None
    """Blocks that fit on one multiprocessor at once, by
    cuOccupancyMaxActiveBlocksPerMultiprocessor."""
    pointers: tuple[PointerArgument, ...] = ()
    arguments_unread: str | None = None
    """Why the arguments could not be read, when they could not."""


class Copy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memcpy node. ``kind`` is ``dtod``, ``htod``, ``dtoh``, ``htoh`` or ``array``."""

    kind: str
    bytes: int
    source: int = 0
    destination: int = 0
    source_allocation: int | None = None
    source_tensor: int | None = None
    destination_allocation: int | None = None
    destination_tensor: int | None = None


class Fill(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memset node."""

    bytes: int
    value: int
    destination: int = 0
    destination_allocation: int | None = None
    destination_tensor: int | None = None


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of a graph."""

    id: int
    """Position in creation order, from 0: the driver's own number of the node."""
    type: str
    """``kernel``, ``memcpy``, ``memset``, ``host``, ``child``, ``empty``, ``event_wait``,
    ``event_record``, ``semaphore_signal``, ``semaphore_wait``, ``alloc``, ``free``,
    ``batch_mem_op``, ``conditional``, ``type_<n>`` for a number that this cgtool does not know,
    or, on the simulated device only, ``op``: one ATen op that would launch device work."""
    origin: int | None = None
    """Index into ``Capture.origins``."""
    call: int | None = None
    """Ordinal of the op call inside its graph: nodes of one call share it."""
    stream: int | None = None
    """Index into ``Capture.streams``: the stream that it was captured on."""
    kernel: KernelLaunch | None = None
    copy: Copy | None = None
    fill: Fill | None = None
    body: tuple[int, ...] = ()
    """For child and conditional nodes: indices into ``Capture.graphs``."""
    duration_ns: int | None = None
    """GPU time of the node in one replay, median of several, where it was measured."""
    start_ns: int | None = None
    """Its start in one replay, median of several, from the start of the graph's first node."""
    shape: str | None = None
    """Simulated device: the op's outputs, as ``float32[4,16,64]``."""
    detail: str | None = None
    """Anything else worth a line (host function, event, unread parameters and why)."""


class Edge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``target`` waits for ``source`` (node ids)."""

    source: int
    target: int
    from_port: int = 0
    """Of a kernel: 0 full completion, 1 programmatic, 2 launch order."""
    to_port: int = 0
    type: int = 0
    """0 an ordinary dependency, 1 programmatic (the two kernels may overlap)."""


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one op call did, as the recorder saw its arguments and results."""

    reads: tuple[int, ...] = ()
    """Storages that it read. A number stands for one storage over one lifetime, within one graph
    and its backward: memory that is given out anew is another storage."""
    writes: tuple[int, ...] = ()
    """Storages that it wrote or made."""
    read_bytes: int = 0
    """Of the tensors that it read, each once."""
    written_bytes: int = 0
    flops: int | None = None
    """Floating-point operations by the formulas of ``torch.utils.flop_counter``; None for ops that
    it has no formula for."""
    dtype: str | None = None
    """Of its first floating-point result: ``float32``, ``bfloat16``."""


class Graph(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured graph, or the body of a child or conditional node."""

    name: str
    """``forward``, ``backward``, ``step``; with several callables ``forward 0``, ...; a body is
    ``forward/node 12``."""
    phase: str
    """``forward``, ``backward`` or ``step``."""
    callable: int = 0
    """Which of the workload's callables, in the order that the factory returned them."""
    pool: int | None = None
    """Index into ``Memory.pools``."""
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    parent: tuple[int, int] | None = None
    """For a body: (index of the graph, id of the node) that owns it."""
    capture_ns: int | None = None
    instantiate_ns: int | None = None
    upload_ns: int | None = None
    launch_ns: tuple[int, ...] = ()
    """Host time of single ``replay()`` calls on an idle stream."""
    exec_bytes: int | None = None
    """Device memory that the driver took for the executable graph (cudaMemGetInfo before and
    after instantiate and upload)."""
    raw_dot: str | None = None
    """Name of the part of the file that holds the driver's debug_dump text."""
    eager_launches: int | None = None
    """Kernels, copies and fills that the recorded eager iteration launched in this phase."""
    calls: tuple[Call, ...] = ()
    """What the op calls of its nodes read and wrote; ``Node.call`` is an index into it where it
    is not empty."""
    eager_only: tuple[int, ...] = ()
    """Origins of launches of that iteration which no node came of, the first few; indices into
    ``Capture.origins``."""


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kernel function, as cuFuncGetName and cuFuncGetAttribute report it."""

    name: str
    """Mangled."""
    registers: int | None = None
    static_shared_bytes: int | None = None
    local_bytes: int | None = None
    max_threads_per_block: int | None = None
    binary_version: int | None = None
    parameter_bytes: tuple[int, ...] = ()


class Stream(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream that took part in a capture. The first is the capturing stream."""

    handle: int
    name: str
    priority: int | None = None


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One lifetime of a block: allocated while a graph was being captured."""

    address: int
    bytes: int
    """As the allocator rounded it."""
    requested_bytes: int
    pool: int
    """Index into ``Memory.pools``."""
    graph: int
    """Index into ``Capture.graphs``: captured when this was allocated."""
    allocated_at: int
    """Position in the sequence of allocator events of the whole capture, from 0."""
    freed_at: int | None = None
    """Likewise; None when it is alive at the end."""
    stream: int | None = None
    """Index into ``Capture.streams``."""
    origin: int | None = None
    """Index into ``Capture.origins``."""
    node: int | None = None
    """Id of the first node created after the allocation, in ``graph``."""
    label: str | None = None
    """What holds it at the end: ``output[0]``, ``gradient of layers.0.weight``,
    ``cuBLAS workspace``."""


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block of a segment at the end of the capture, as ``memory_snapshot()`` lists it."""

    address: int
    bytes: int
    requested_bytes: int
    state: str
    """``active_allocated``, ``active_awaiting_free``, ``active_pending_free`` or ``inactive``."""


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory that the allocator reserved with one cudaMalloc."""

    address: int
    bytes: int
    stream: int | None
    """Index into ``Capture.streams``."""
    size_class: str
    """``small`` or ``large``."""
    blocks: tuple[Block, ...] = ()
    expandable: bool = False


class Pool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A memory pool of the caching allocator."""

    id: tuple[int, int]
    """PyTorch's MempoolId_t."""
    name: str
    segments: tuple[Segment, ...] = ()


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory that lived before the capture and that the graphs read or write."""

    name: str
    """``parameter layers.0.weight``, ``buffer bn.running_mean``, ``input x``, ..."""
    kind: str
    """``parameter``, ``buffer``, ``input``, ``gradient``, ``optimizer``, ``freed`` (nobody held it
    any more when the capture ended) or ``other``."""
    address: int
    bytes: int
    shape: tuple[int, ...] = ()
    dtype: str = ""


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


class Option(msgspec.Struct, frozen=True, array_like=True):
    name: str
    value: str


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the user pointed at."""

    spec: str
    kind: str
    """``callable``, ``callables`` or ``step``."""
    file: str | None = None
    line: int | None = None
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
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    max_threads_per_multiprocessor: int | None = None
    device_bytes: int | None = None
    platform: str = ""
    cpu: str | None = None
    """The processor's name, as the kernel tells it."""
    cpus: int | None = None
    """Processors that the process could use."""
    allocator_config: str | None = None


class Capture(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of it."""

    entry: Entry
    environment: Environment
    created: str
    """UTC, ISO 8601."""
    cgtool: str
    """Version that wrote it."""
    graphs: tuple[Graph, ...] = ()
    frames: tuple[Frame, ...] = ()
    origins: tuple[Origin, ...] = ()
    functions: tuple[Function, ...] = ()
    streams: tuple[Stream, ...] = ()
    memory: Memory = Memory()
    warmup_iters: int = 0
    warmup_ns: int | None = None
    recorder: str = ""
    """How provenance was found: ``node-callbacks``, ``in-capture`` (``frontier`` in older
    files), ``simulated``."""
    bench: Bench | None = None
    profile: Profile | None = None
    caveats: tuple[Caveat, ...] = ()


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
