"""The line, module and op that a reader looks for behind a node."""

from __future__ import annotations

import msgspec

from cgtool.model.capture import Capture, Frame, Graph, Node, Origin

WORK = ("kernel", "memcpy", "memset", "op")
"""Types of nodes that do work on the device."""


class Place(msgspec.Struct, frozen=True):
    """One node's provenance in words."""

    op: str | None = None
    module: str | None = None
    module_type: str | None = None
    frame: Frame | None = None
    """The innermost frame outside torch of the op itself; in backward, of the call that runs
    backward."""
    forward_op: str | None = None
    forward_frame: Frame | None = None
    autograd_node: str | None = None
    annotations: tuple[str, ...] = ()

    @property
    def line(self) -> Frame | None:
        """The line that the work belongs to: in backward, the forward op's."""
        return self.forward_frame or self.frame

    @property
    def short_op(self) -> str | None:
        """``addmm`` for ``aten::addmm``, ``add`` for ``aten::add.Tensor``."""
        return None if self.op is None else short_op(self.op)


def short_op(op: str) -> str:
    name = op.partition("::")[2] or op
    return name.partition(".")[0]


class Places:
    """Looks up nodes of one capture; each origin is resolved once."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._known: dict[int, Place] = {}
        self._none = Place()

    def _frame(self, origin: Origin) -> Frame | None:
        return self._capture.frames[origin.frames[0]] if origin.frames else None

    def of_origin(self, index: int | None) -> Place:
        if index is None:
            return self._none
        known = self._known.get(index)
        if known is None:
            origin = self._capture.origins[index]
            forward = None if origin.forward is None else self._capture.origins[origin.forward]
            known = self._known[index] = Place(
                origin.op,
                origin.module,
                origin.module_type,
                self._frame(origin),
                forward.op if forward else None,
                self._frame(forward) if forward else None,
                origin.autograd_node,
                origin.annotations,
            )
        return known

    def of(self, node: Node) -> Place:
        return self.of_origin(node.origin)


def file_line(frame: Frame | None) -> str:
    """``model.py:42``: the file's own name and the line."""
    return "" if frame is None else f"{frame.file.rpartition('/')[2]}:{frame.line}"


def module_at_depth(module: str | None, depth: int) -> str:
    """The first ``depth`` names of a module path; the root module is ``(root)``."""
    if module is None:
        return "(no module)"
    return ".".join(module.split(".")[:depth]) if module else "(root)"


def part_of(capture: Capture, graph: Graph) -> str | None:
    """Which of several callables the graph belongs to; None where there is only one."""
    names = capture.entry.callables
    return names[graph.callable] if len(names) > 1 and graph.callable < len(names) else None
