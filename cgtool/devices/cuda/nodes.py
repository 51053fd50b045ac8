"""Read a captured graph with the driver's getters: nodes, parameters, kernel functions, edges.

Types and getters: CUDA driver API 13.0, "Graph Management". The driver lists nodes in creation
order, which is also their number in its DOT text.
"""

from __future__ import annotations

import array
import ctypes
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import starmap
from pathlib import Path
from typing import Any

from cgtool.devices.cuda.driver import (
    FUNCTION_ATTRIBUTES,
    DriverError,
    KernelParams,
    capturing_graph,
    check,
    cu,
    graph_edges,
    graph_nodes,
    kernel_params,
    node_type,
    relaxed,
)
from cgtool.devices.cuda.memory import AddressBook, Place
from cgtool.model.capture import Copy, Edge, Fill, Function, KernelLaunch, Node, PointerArgument

# By number, not by name: an older cuda-bindings lacks the newer names.
NODE_TYPES = {
    0: "kernel",
    1: "memcpy",
    2: "memset",
    3: "host",
    4: "child",
    5: "empty",
    6: "event_wait",
    7: "event_record",
    8: "semaphore_signal",
    9: "semaphore_wait",
    10: "alloc",
    11: "free",
    12: "batch_mem_op",
    13: "conditional",
}
TIMED = ("kernel", "memcpy", "memset")
"""Types of nodes that are work of the device: a profiler records them."""


def type_of(node: int) -> str:
    """The type of a node by its handle, as in ``Node.type``. Raises DriverError."""
    number = node_type(node)
    return NODE_TYPES.get(number, f"type_{number}")


def read_node(getter: str, node: int) -> Any:
    """Calls a getter of the driver for a node, by its handle. Raises DriverError."""
    return check(getter, getattr(cu, getter)(cu.CUgraphNode(node)))


_ARGUMENTS = range(KernelParams.kernelParams.offset, KernelParams.kern.offset)
"""Where the arguments are in the parameters of a launch."""
Provenance = tuple[int | None, int | None, int | None]
"""(origin, call, stream) of a node, as in ``Node``."""
NodeFields = dict[str, Any]
"""Fields of ``Node`` that a getter fills; ``graphs`` are the CUgraphs inside a node."""
PlaceOf = Callable[..., Place | None]
"""``AddressBook.lookup`` for the node that is read."""


@dataclass
class GraphContents:
    """A graph as read."""

    handles: list[int]
    """Handles of the nodes, in order of creation."""
    fields: list[NodeFields]
    _links: Iterable[tuple[int, int, int]]
    """Edges as ``graph_edges`` returns them."""
    children: dict[int, Sequence[Any]]
    """Node id to the CUgraphs inside it."""

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        ids = {handle: position for position, handle in enumerate(self.handles)}
        return tuple(_edge(ids[source], ids[target], data) for source, target, data in self._links)

    def nodes(self, provenance: Iterable[Provenance]) -> tuple[Node, ...]:
        """The nodes. ``provenance`` has one entry for each."""
        return _nodes(self.fields, provenance)


class CapturedContents:
    """Contents of a graph that was read in C++; Python objects are made when they are needed."""

    def __init__(
        self,
        graph: Any,
        launched: Callable[[bytes], NodeFields],
        others: dict[int, NodeFields],
    ) -> None:
        """``graph``: a ``ReadGraph``; ``launched``: the fields of one of its ``distinct_launches``;
        ``others``: of all other nodes, by position."""
        self._graph = graph
        self._launched = launched
        self._others = others

    @property
    def handles(self) -> list[int]:
        handles: list[int] = self._graph.handles
        return handles

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(starmap(_edge, self._graph.edges()))

    def nodes(self, provenance: Iterable[Provenance]) -> tuple[Node, ...]:
        launches = list(map(self._launched, self._graph.distinct_launches()))
        fields = (
            self._others[number] if launch < 0 else launches[launch]
            for number, launch in enumerate(self._graph.launches)
        )
        return _nodes(fields, provenance)


def _nodes(each: Iterable[NodeFields], provenance: Iterable[Provenance]) -> tuple[Node, ...]:
    return tuple(
        Node(number, origin=origin, call=call, stream=stream, **fields)
        for number, (fields, (origin, call, stream)) in enumerate(
            zip(each, provenance, strict=True)
        )
    )


@dataclass
class GraphReader:
    """Reads the graphs of one capture into shared tables."""

    functions: FunctionTable
    addresses: AddressBook
    native: Any = None
    """Reads graphs in C++: what ``native_reader`` returns. Only where no address is known."""
    _launches: dict[bytes, KernelLaunch] = field(default_factory=dict)
    """By the parameters of the launch, without its arguments: if no address is known, that is all
    that is read."""

    def read(self, graph: Any, graph_index: int) -> GraphContents:
        """All that the driver reports of ``graph`` (a CUgraph)."""
        handles = graph_nodes(int(graph))
        children: dict[int, Sequence[Any]] = {}
        nodes: list[NodeFields] = []
        for position, handle in enumerate(handles):
            place_of = partial(self.addresses.lookup, graph=graph_index, node=position)
            fields = self._fields(handle, place_of)
            if "graphs" in fields:
                children[position] = fields.pop("graphs")
            nodes.append(fields)
        return GraphContents(handles, nodes, graph_edges(int(graph)), children)

    def read_captured(self, stream: int) -> GraphContents | CapturedContents | None:
        """The graph that a stream is being captured into, without what child graphs contain; None
        if it is not capturing."""
        if self.native is None:
            graph = capturing_graph(stream)
            if graph is None:
                return None
            with relaxed():
                return self.read(graph, 0)
        graph = self.native.read(stream)
        if graph is None:
            return None
        others: dict[int, NodeFields] = {}
        unread = graph.others()
        with relaxed() if unread else nullcontext():
            for position, handle in unread:
                others[position] = self._fields(handle, self._nowhere)
                others[position].pop("graphs", None)
        return CapturedContents(graph, self._launched, others)

    def _nowhere(self, *_args: Any, **_kwargs: Any) -> None:
        """No address is known."""

    def _launched(self, params: bytes) -> NodeFields:
        """``_kernel``, by the parameters of the launch, without its arguments."""
        known = self._launches.get(_without_arguments(params))
        if known is not None:
            return {"type": "kernel", "kernel": known}
        read = KernelParams.from_buffer_copy(params)
        return {"type": "kernel", **_readable(lambda: self._launch(read, self._nowhere))}

    def _fields(self, handle: int, place_of: PlaceOf) -> NodeFields:
        try:
            name = type_of(handle)
        except DriverError as error:
            return {"type": "type_unknown", "detail": str(error)}
        reader = _READERS.get(name)
        fields = {} if reader is None else _readable(lambda: reader(self, handle, place_of))
        return {"type": name, **fields}

    def _kernel(self, handle: int, place_of: PlaceOf) -> NodeFields:
        return self._launch(kernel_params(handle), place_of)

    def _launch(self, params: Any, place_of: PlaceOf) -> NodeFields:
        has_addresses = self.addresses.low < self.addresses.high
        same = _without_arguments(bytes(params))
        if same in self._launches:
            return {"kernel": self._launches[same]}
        function = self.functions.resolve(params)
        if function is None:
            return {"detail": "the driver reports no function"}
        block = (params.blockDimX, params.blockDimY, params.blockDimZ)
        shared = params.sharedMemBytes
        pointers, unread = self._arguments(params, function, place_of)
        launch = KernelLaunch(
            function=self.functions.index(function),
            grid=(params.gridDimX, params.gridDimY, params.gridDimZ),
            block=block,
            dynamic_shared_bytes=shared,
            active_blocks=self.functions.active_blocks(function, math.prod(block), shared),
            pointers=pointers,
            arguments_unread=unread,
        )
        if not has_addresses:
            self._launches[same] = launch
        return {"kernel": launch}

    def _arguments(
        self, params: Any, function: int, place_of: PlaceOf
    ) -> tuple[tuple[PointerArgument, ...], str | None]:
        """Words of the arguments that are known addresses, or why the arguments cannot be read.
        Pointers in device memory (pointer tables, TMA descriptors) are not followed."""
        low, high = self.addresses.low, self.addresses.high
        if low >= high:
            return (), None
        layout = self.functions.layout(function)
        if layout is None:
            return (), "this driver, or its bindings, has no cuFuncGetParamInfo"
        if not layout:
            return (), None
        if not params.kernelParams:
            return (), "passed through `extra`, which has no table of parameters"
        pointers: list[PointerArgument] = []
        for position, value in arguments_of(params, layout):
            words = array.array("Q", value[: len(value) & ~7])
            for index, word in enumerate(words):
                if not low <= word < high:
                    continue
                place = place_of(word, in_struct=len(value) > 8)
                if place is not None:
                    pointers.append(PointerArgument(position, index * 8, word, *place))
        return tuple(pointers), None

    def _memcpy(self, handle: int, place_of: PlaceOf) -> NodeFields:
        params = read_node("cuGraphMemcpyNodeGetParams", handle)
        source, source_kind = _end(params, "src")
        destination, destination_kind = _end(params, "dst")
        source_allocation, source_tensor = place_of(source) or (None, None)
        destination_allocation, destination_tensor = place_of(destination) or (None, None)
        copy = Copy(
            kind=f"{source_kind}to{destination_kind}",
            bytes=int(params.WidthInBytes) * max(1, int(params.Height)) * max(1, int(params.Depth)),
            source=source,
            destination=destination,
            source_allocation=source_allocation,
            source_tensor=source_tensor,
            destination_allocation=destination_allocation,
            destination_tensor=destination_tensor,
        )
        return {"copy": copy}

    def _memset(self, handle: int, place_of: PlaceOf) -> NodeFields:
        params = read_node("cuGraphMemsetNodeGetParams", handle)
        allocation, tensor = place_of(int(params.dst)) or (None, None)
        fill = Fill(
            bytes=int(params.elementSize) * int(params.width) * max(1, int(params.height)),
            value=int(params.value),
            destination=int(params.dst),
            destination_allocation=allocation,
            destination_tensor=tensor,
        )
        return {"fill": fill}

    def _host(self, handle: int, _place_of: PlaceOf) -> NodeFields:
        params = read_node("cuGraphHostNodeGetParams", handle)
        return {"detail": f"host function at {int(params.fn):#x}"}

    def _child(self, handle: int, _place_of: PlaceOf) -> NodeFields:
        return {"graphs": [read_node("cuGraphChildGraphNodeGetGraph", handle)]}

    def _conditional(self, handle: int, _place_of: PlaceOf) -> NodeFields:
        try:
            params = read_node("cuGraphNodeGetParams", handle)
        except (AttributeError, RuntimeError):  # before driver and bindings 13.2
            return {"detail": "only the driver's DOT text shows its bodies (dump --raw)"}
        return {"graphs": params.conditional.phGraph_out}


def _readable(read: Callable[[], NodeFields]) -> NodeFields:
    try:
        return read()
    except (RuntimeError, ValueError, OSError) as error:
        # The other nodes can still be read.
        return {"detail": f"parameters not readable: {error}"}


def _without_arguments(params: bytes) -> bytes:
    return params[: _ARGUMENTS.start] + params[_ARGUMENTS.stop :]


_READERS: dict[str, Callable[[GraphReader, Any, PlaceOf], NodeFields]] = {
    "kernel": GraphReader._kernel,
    "memcpy": GraphReader._memcpy,
    "memset": GraphReader._memset,
    "host": GraphReader._host,
    "child": GraphReader._child,
    "conditional": GraphReader._conditional,
}


def arguments_of(params: Any, layout: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """(position, value) of each argument of a kernel node that is in its table of parameters.
    ``layout``: as of ``FunctionTable``."""
    table = params.kernelParams
    if not table or not layout:
        return
    starts = (ctypes.c_void_p * len(layout)).from_address(table)
    for position, (_offset, size) in enumerate(layout):
        start = starts[position]
        if start is not None:
            yield position, ctypes.string_at(start, size)


_HOST, _DEVICE, _ARRAY = 1, 2, 3


def _end(params: Any, side: str) -> tuple[int, str]:
    """Address and letter (``d`` device, ``h`` host, ``a`` array) of one end of a copy."""
    kind = int(getattr(params, f"{side}MemoryType"))
    if kind == _HOST:
        return int(getattr(params, f"{side}Host") or 0), "h"
    if kind == _ARRAY:
        return 0, "a"
    address = int(getattr(params, f"{side}Device"))
    if kind != _DEVICE:
        # Unified addressing: the driver knows what the pointer points to.
        code, value = cu.cuPointerGetAttribute(
            cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address
        )
        if int(code) != 0 or int(value) == _HOST:
            return address, "h"
    return address, "d"


def _edge(source: int, target: int, data: int) -> Edge:
    if data == 0:
        return Edge(source, target)
    return Edge(source, target, data & 0xFF, data >> 8 & 0xFF, data >> 16 & 0xFF)


RAW_DOT_NODES = 20_000
"""Larger graphs would have more than a hundred megabytes of DOT text."""


def debug_dot(graph: Any) -> str | None:
    """The driver's own DOT text with every detail, or None when it writes none."""
    with tempfile.TemporaryDirectory(prefix="cgtool-") as folder:
        path = Path(folder, "graph.dot")
        code, *_ = cu.cuGraphDebugDotPrint(graph, str(path).encode(), 1)
        return path.read_text(errors="replace") or None if int(code) == 0 else None


_MAX_PARAMETERS = 1024
"""More parameters than any kernel has: ends the loop if a driver never returns INVALID_VALUE."""
_INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE: the kernel has no parameter with this number."""


@dataclass
class FunctionTable:
    """Functions in order of first use."""

    functions: list[Function] = field(default_factory=list)
    native: Any = None
    """The reader in C++, if there is one: see ``GraphReader.native``."""
    _indices: dict[int, int] = field(default_factory=dict)
    _layouts: dict[int, tuple[tuple[int, int], ...] | None] = field(default_factory=dict)
    _occupancy: dict[tuple[int, int, int], int | None] = field(default_factory=dict)

    def resolve(self, params: Any) -> int | None:
        """The CUfunction of ``KernelParams``; ``kern`` is used when ``func`` is NULL."""
        if params.func:
            return int(params.func)
        if params.kern:
            code, function = cu.cuKernelGetFunction(cu.CUkernel(params.kern))
            return int(function) if int(code) == 0 else None
        return None

    def index(self, function: int) -> int:
        """Index into ``functions``."""
        known = self._indices.get(function)
        if known is None:
            known = self._indices[function] = len(self.functions)
            self.functions.append(self._read(function))
        return known

    def layout(self, function: int) -> tuple[tuple[int, int], ...] | None:
        """(offset, size) in bytes of each parameter (cuFuncGetParamInfo, driver 12.4); None if
        the driver or its bindings have no such call."""
        if function not in self._layouts:
            self._layouts[function] = _read_layout(cu.CUfunction(function))
        return self._layouts[function]

    def active_blocks(self, function: int, threads: int, dynamic_shared_bytes: int) -> int | None:
        """Blocks that fit on one multiprocessor at once; None if the driver does not report it."""
        key = (function, threads, dynamic_shared_bytes)
        if key not in self._occupancy:
            self._occupancy[key] = self._read_active_blocks(*key)
        return self._occupancy[key]

    def _read_active_blocks(self, *key: int) -> int | None:
        if self.native is not None:
            known: int | None = self.native.active_blocks(*key)
            return known
        function, threads, shared = key
        code, blocks = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            cu.CUfunction(function), threads, shared
        )
        return int(blocks) if int(code) == 0 else None

    def _read(self, function: int) -> Function:
        if self.native is not None:
            name, values, self._layouts[function] = self.native.function(function)
        else:
            handle, attribute = cu.CUfunction(function), cu.CUfunction_attribute
            name = check("cuFuncGetName", cu.cuFuncGetName(handle))
            asked = (
                cu.cuFuncGetAttribute(attribute(number), handle) for number in FUNCTION_ATTRIBUTES
            )
            values = [int(value) if int(code) == 0 else None for code, value in asked]
        registers, static_shared, local, threads, version = values
        return Function(
            name=name.decode(errors="replace") if name else "?",
            registers=registers,
            static_shared_bytes=static_shared,
            local_bytes=local,
            max_threads_per_block=threads,
            binary_version=version,
            parameter_bytes=tuple(size for _, size in self.layout(function) or ()),
        )


def _read_layout(function: Any) -> tuple[tuple[int, int], ...] | None:
    query: Any = getattr(cu, "cuFuncGetParamInfo", None)
    if query is None:
        return None
    parameters: list[tuple[int, int]] = []
    for position in range(_MAX_PARAMETERS):
        try:
            code, offset, size = query(function, position)
        except RuntimeError:
            # The bindings have the call, but the driver does not.
            return None
        if int(code) == _INVALID_VALUE:
            break
        if int(code) != 0:
            return None
        parameters.append((int(offset), int(size)))
    return tuple(parameters)
