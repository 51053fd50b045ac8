"""One run of one script: what happens, told to the checks."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from cgtool.detectors.capture_errors import explain
from cgtool.detectors.reporting import FindingLog
from cgtool.detectors.script.check import Check
from cgtool.detectors.script.reported_errors import tell_once, told
from cgtool.model.capture import Frame
from cgtool.model.finding import Code, Finding
from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import overwrites, written_by
from cgtool.observe.frames import chain_of, exception_frames, frames_of, here, is_internal
from cgtool.observe.ops import OpCall, op_name
from cgtool.observe.script.device import Machine
from cgtool.observe.script.names import region_of
from cgtool.observe.script.state import Cells, Made, Op, Read, WatchedGraph, Write
from cgtool.observe.script.stream_order import Order
from cgtool.observe.storage import storage_of, tensors_in
from cgtool.torch_compat.private import storage_key

_SYNCS = frozenset(
    (
        "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
        "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    )
)  # fmt: skip


class Watch:
    """One run of one script."""

    def __init__(self, machine: Machine, findings: FindingLog, annotations: Annotations) -> None:
        self.machine = machine
        self.findings = findings
        self.annotations = annotations
        self.order = Order()
        self.cells = Cells()
        self.graphs: list[WatchedGraph] = []
        self._by_graph: weakref.WeakKeyDictionary[Any, WatchedGraph] = weakref.WeakKeyDictionary()
        self.capture: WatchedGraph | None = None
        self.thread: int | None = None
        """That captures."""
        self.home = threading.get_ident()
        self.now = 0
        """Counts writes and replays."""
        self.checks: list[Check] = []
        self.closed = False

    # What checks use.

    def report(
        self,
        code: Code,
        reason: str,
        frames: tuple[Frame, ...],
        *,
        fix: str | None = None,
        evidence: tuple[str, ...] = (),
        severity: str | None = None,
        phase: str | None = None,
        module: str | None = None,
    ) -> None:
        if not self.closed:
            self.findings.add(
                Finding(
                    code,
                    reason,
                    frames,
                    module=module,
                    phase=phase,
                    fix=fix,
                    evidence=evidence,
                    severity=severity,
                )
            )

    def place(self) -> tuple[Frame, ...]:
        """The user's frames now; on autograd's threads those of the call that waits for them."""
        frames = here(2)
        return frames or frames_of(chain_of(sys._current_frames().get(self.home)))

    def here(self) -> tuple[Frame, ...]:
        """The user's frames of this very thread."""
        return here(2)

    def frame(self) -> types.FrameType | None:
        """The innermost frame of the user's, on the thread that runs the script.

        Never one of cgtool's: a frame that is kept in a local of its own is a cycle, and keeps
        alive all that its callers hold.
        """
        if threading.get_ident() == self.home:
            frame: types.FrameType | None = sys._getframe(1)
        else:
            frame = sys._current_frames().get(self.home)
        while frame is not None and is_internal(frame.f_code):
            frame = frame.f_back
        return frame

    def of(self, graph: Any) -> WatchedGraph | None:
        return self._by_graph.get(graph)

    def alive(self) -> Iterator[WatchedGraph]:
        """Graphs that can be replayed."""
        return (one for one in self.graphs if one.live())

    # What happens.

    def begun(self, graph: Any, pool: Any, mode: str) -> None:
        frame = self.frame()
        watched = WatchedGraph(
            number=len(self.graphs) + 1,
            graph=weakref.ref(graph, lambda _: self.dropped(watched)),
            frames=self.place(),
            pool=None if pool is None else tuple(pool),
            own_pool=pool is None,
            mode=mode,
            stream=self.machine.stream(),
            began=self.now,
        )
        while frame is not None:
            if not is_internal(frame.f_code):
                if not watched.outer:
                    watched.lines = region_of(frame)
                watched.outer[id(frame)] = frame.f_lasti
            frame = frame.f_back
        self.graphs.append(watched)
        self._by_graph[graph] = watched
        self.capture, self.thread = watched, threading.get_ident()
        self.machine.begun(self)
        recorder = self.machine.recorder
        if recorder is not None:
            watched.record = recorder.record
        for check in self.checks:
            check.begun(watched)

    def captured(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any
    ) -> None:
        """An op of the capture in progress."""
        graph = self.capture
        if graph is None:
            return
        graph.ops += 1
        if self.machine.on_host:
            return
        graph.device_ops += 1
        op = Op(call, func, call.name, args, kwargs, made)
        fresh: list[int] = []
        written = {
            storage_key(storage)
            for one in written_by(func, args, kwargs)
            if (storage := storage_of(one)) is not None
        }
        given: set[int] = set()
        for tensor in tensors_in((args, kwargs)):
            storage = storage_of(tensor)
            if storage is None:
                continue
            key = storage_key(storage)
            given.add(key)
            if key in graph.made:
                continue
            known = graph.reads.get(key)
            if known is None:
                fresh.append(key)
                graph.reads[key] = self._read(call, tensor, storage, key in written)
            else:
                known.written |= key in written
        for tensor in tensors_in(made):
            storage = storage_of(tensor)
            if storage is None:
                continue
            key = storage_key(storage)
            if key not in given and key not in graph.made and key not in graph.reads:
                self._made(graph, call, tensor, storage)
        for check in self.checks:
            check.captured(graph, op, fresh)

    def _read(
        self, call: OpCall, tensor: torch.Tensor, storage: torch.UntypedStorage, written: bool
    ) -> Read:
        cell = self.cells.add(storage, self.machine.place(tensor), self.machine.address(storage))
        whole = tensor.numel() * tensor.element_size() == storage.nbytes()
        return Read(
            cell,
            call,
            weakref.ref(tensor),
            tuple(tensor.shape),
            tensor.data_ptr(),
            written,
            written and overwrites(call.name),
            whole,
        )

    def _made(self, graph: WatchedGraph, call: OpCall, tensor: torch.Tensor, storage: Any) -> None:
        cell = self.cells.add(storage, "device", self.machine.address(storage))
        cell.made_in = graph
        graph.made[cell.key] = Made(cell, call, weakref.ref(tensor))

    def ending(self, graph: Any) -> None:
        """``capture_end`` is called."""
        watched = self._by_graph.get(graph)
        if watched is not None and watched is self.capture:
            # Kernels that no op of PyTorch's launches (Triton's, the user's own) count too.
            watched.device_ops = max(watched.device_ops, self.machine.nodes())

    def warned(self, text: str) -> None:
        """PyTorch has warned of something that the capture in progress does."""
        for check in self.checks:
            check.warned(text)

    def ended(self, graph: Any) -> None:
        watched = self._by_graph.get(graph)
        self._over()
        if watched is None:
            return
        watched.state = "captured"
        watched.keeps = self.machine.keeps(graph)
        with contextlib.suppress(Exception):
            watched.pool = tuple(graph.pool())
        for check in self.checks:
            check.ended(watched)

    def failed(self, graph: Any, error: BaseException, during: BaseException | None) -> None:
        """``during`` is what the captured code had raised before."""
        self._over()
        watched = self._by_graph.get(graph)
        root = during or error
        if during is not None or watched is None or not watched.disturbed:
            self.explain(root, "capture", () if during is not None else self.place())
        tell_once(error)
        if watched is not None:
            watched.state = "failed"
            for check in self.checks:
                check.failed(watched, root)

    def _over(self) -> None:
        self.capture = self.thread = None
        self.machine.ended()

    def explain(self, error: BaseException, phase: str, frames: tuple[Frame, ...] = ()) -> bool:
        """Collect what an exception means; False when it means nothing to cgtool."""
        if told(error):
            return True
        found = explain(error, phase)
        if found is None:
            return False
        tell_once(error)
        self.report(
            found.code,
            found.reason,
            frames or exception_frames(error) or self.place(),
            fix=found.fix,
            evidence=found.evidence,
            phase=phase,
        )
        return True

    def instantiated(self, graph: Any, by_script: bool = False) -> None:
        """A graph has an executable one now: made by ``instantiate()``, or by a replay."""
        watched = self._by_graph.get(graph)
        if watched is None or not watched.keeps:
            return
        watched.instantiated |= by_script
        if by_script or watched.template is None:
            watched.template = self.machine.template(graph)

    def replaying(self, graph: Any) -> None:
        watched = self._by_graph.get(graph)
        if watched is not None:
            for check in self.checks:
                check.replaying(watched)

    def replayed(self, graph: Any) -> None:
        watched = self._by_graph.get(graph)
        if watched is None:
            return
        stream = self.machine.stream()
        self.now += 1
        watched.replays += 1
        write = Write(stream, self.order.submit(stream), self.now, watched, frames=self.place())
        watched.last = write
        for check in self.checks:
            check.replayed(watched)
        for read in watched.reads.values():
            read.cell.read_by = write
            if read.written:
                read.cell.write = write
        for made in watched.made.values():
            made.cell.write = write

    def eager(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """An op outside captures."""
        if self.closed or self.capture is not None or not len(self.cells):
            return
        name = op_name(func)
        touched = [cell for one in tensors_in((args, kwargs)) if (cell := self.cells.find(one))]
        if touched:
            op = Op(None, func, name, args, kwargs, made)
            for check in self.checks:
                check.eager(op)
            written = [
                cell for one in written_by(func, args, kwargs) if (cell := self.cells.find(one))
            ]
            if written:
                stream = self.machine.stream()
                self.now += 1
                write = Write(
                    stream, self.order.submit(stream), self.now, None, frames=self.place()
                )
                for cell in written:
                    cell.write = write
        if name.partition(".")[0] in _SYNCS and not self.machine.on_host:
            self.waited(name, next(tensors_in(args), None))

    def waited(self, why: str, tensor: Any = None) -> None:
        """The host has waited for the current stream."""
        if self.capture is None and not self.closed:
            self.order.host_waits(self.machine.stream())
            for check in self.checks:
                check.waited(why, tensor)

    def returned(self, tensor: torch.Tensor) -> None:
        """A function of torch's has returned a tensor to the script."""
        if self.capture is None and len(self.cells) and not self.closed:
            for check in self.checks:
                check.returned(tensor)

    def dropped(self, watched: WatchedGraph) -> None:
        if self.closed or watched.state != "captured":
            return
        for check in self.checks:
            check.dropped(watched)
        watched.state = "dropped"

    def finish(self) -> None:
        """The script is over."""
        for check in self.checks:
            check.finish()
        self.closed = True
