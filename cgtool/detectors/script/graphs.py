"""What the watcher knows of one CUDA graph of the script's."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.detectors.script.cells import Cell, Write
from cgtool.model.capture import Frame
from cgtool.observe.ops import OpCall, Record

PoolId = tuple[int, int]


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
