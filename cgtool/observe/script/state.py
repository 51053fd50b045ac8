"""What is known of a script's CUDA graphs, and of the memory that they touch."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.model.capture import Frame
from cgtool.observe.frames import Site
from cgtool.observe.ops import OpCall, Record
from cgtool.observe.storage import storage_of
from cgtool.torch_compat.private import storage_key

PoolId = tuple[int, int]


@dataclass(slots=True)
class Write:
    """The last time that a storage was written."""

    stream: int
    tick: int
    """Of the stream's clock (``order.Order``)."""
    at: int
    """Of the watcher's count of events."""
    graph: WatchedGraph | None
    """The replay of this graph wrote it; None for an eager op."""
    chain: tuple[Site, ...] = ()
    frames: tuple[Frame, ...] = ()


@dataclass(slots=True, eq=False)
class Cell:
    """One storage. Holds no reference that keeps it alive."""

    key: int
    ref: StorageWeakRef
    bytes: int
    place: str
    """``device``, ``host``, ``pinned``."""
    address: int
    """On the device; of the allocator's model on the simulated one."""
    made_in: WatchedGraph | None = None
    """The graph in whose capture it was allocated."""
    write: Write | None = None
    read_by: Write | None = None
    """The last replay that reads it."""

    @property
    def end(self) -> int:
        return self.address + self.bytes


class Cells:
    """All storages that some graph reads, writes or made."""

    def __init__(self) -> None:
        self._cells: dict[int, Cell] = {}

    def find(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of a tensor's storage, if a graph knows it."""
        storage = storage_of(tensor)
        return None if storage is None else self._cells.get(storage_key(storage))

    def known(self, key: int) -> Cell | None:
        return self._cells.get(key)

    def add(self, storage: torch.UntypedStorage, place: str, address: int) -> Cell:
        """The cell of a storage, made if need be."""
        key = storage_key(storage)
        cell = self._cells.get(key)
        if cell is None:
            # The weak reference keeps the number from being given to another storage.
            cell = Cell(key, StorageWeakRef(storage), storage.nbytes(), place, address)
            self._cells[key] = cell
        return cell

    def __len__(self) -> int:
        return len(self._cells)


@dataclass(slots=True)
class Op:
    """One op, eager or captured."""

    call: OpCall | None
    """Of captured ops."""
    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: Any = None


@dataclass(slots=True)
class Read:
    """A storage from outside that a graph reads or writes."""

    cell: Cell
    call: OpCall
    """The first op that touches it."""
    tensor: weakref.ref[torch.Tensor]
    shape: tuple[int, ...]
    data_ptr: int
    written: bool = False
    first_is_write: bool = False
    """The graph overwrites it before it reads it."""
    whole: bool = True
    """The tensor that the graph reads is all of the storage."""


@dataclass(slots=True)
class Made:
    """A storage that was allocated in a capture."""

    cell: Cell
    call: OpCall
    tensor: weakref.ref[torch.Tensor]


@dataclass(eq=False)
class WatchedGraph:
    """From ``capture_begin`` to the end of the script."""

    number: int
    graph: weakref.ref[Any]
    frames: tuple[Frame, ...]
    """Of ``capture_begin``."""
    pool: PoolId | None
    """As it was given; after the capture, as it is."""
    own_pool: bool
    mode: str
    stream: int
    began: int
    """The watcher's count of events at ``capture_begin``."""
    outer: dict[int, int] = field(default_factory=dict)
    """Frames that were running at ``capture_begin``: id to the offset of their last instruction."""
    lines: tuple[int, int] = (0, 0)
    """Lines of the innermost user frame between which the capture lies."""
    record: Record = field(default_factory=Record)
    reads: dict[int, Read] = field(default_factory=dict)
    made: dict[int, Made] = field(default_factory=dict)
    ops: int = 0
    device_ops: int = 0
    peak_bytes: int = 0
    state: str = "capturing"
    """``capturing``, ``captured``, ``failed``, ``dropped``."""
    replays: int = 0
    last: Write | None = None
    """Of the last replay."""
    keeps: bool = False
    """Made with keep_graph=True."""
    instantiated: bool = False
    """The script has called ``instantiate()``."""
    handed_out: bool = False
    """The script has asked for the driver's handle of the template, and can edit it."""
    template: Hashable = None
    """What the template held when it was instantiated; None for what cannot be told."""
    disturbed: bool = False
    """What may have ended the capture from outside is told."""
    explained: set[int] = field(default_factory=set)
    """Storages whose hazard is told under another name."""
    part: Any = None
    """Of what ``make_graphed_callables`` made: ``callables.Part``."""

    @property
    def name(self) -> str:
        return f"graph {self.number}"

    def live(self) -> bool:
        return self.state == "captured"
