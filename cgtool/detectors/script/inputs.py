"""Inputs of a graph that are rebound, freed or resized, or were cast before the capture."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from cgtool.detectors.reporting import Detector, at_call
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import WARNING, Finding
from cgtool.observe.script import events
from cgtool.observe.script.names import Path, Stack, everything_named, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import ExternalUse, WatchedGraph
from cgtool.observe.tensors import key_of
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.storages import StorageMarks

AUTOCAST_WEIGHT_CACHE = code("autocast-weight-cache")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
REPLAY_WITH_OTHER_SHAPE = code("replay-with-other-shape")
_REBOUND = {
    "name": code("input-rebound-not-copied"),
    "attribute": code("metadata-address-changed"),
    "item": code("metadata-address-changed"),
    "state": code("metadata-address-changed"),
    "parameter": code("parameter-rebound"),
}
"""By kind of the path."""

_Places = StorageMarks[tuple[int, Frames]]
"""For each storage, a time and a line."""
_COMPARISONS = 16
"""How often the values of a tensor are compared with those of another one."""
_FIX_OF_SHAPE = (
    "capture again when the shape has changed, or keep one tensor that is large enough, `copy_()` "
    "into a part of it, and mask the rest"
)


class ModuleChanges:
    """The line that last changed each module, and how many graphs there were then."""

    def __init__(self) -> None:
        self._changes: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, tuple[int, Frames]]] = (
            weakref.WeakKeyDictionary()
        )

    def note(self, changed: torch.nn.Module, script: ObservedScript, name: str = "") -> None:
        """``name``: of the only parameter or buffer that changed."""
        change = len(script.graphs), script.place()
        for module in [changed] if name else changed.modules():
            self._changes.setdefault(module, {})[name] = change

    def since(self, module: torch.nn.Module, graph: WatchedGraph, name: str = "") -> Frames:
        """Where a module, or one parameter or buffer of it, was changed since the capture of a
        graph; () if no line was seen."""
        graphs, frames = self._changes.get(module, {}).get(name, (0, ()))
        return frames if graphs > graph.number else ()

    def last_registered(self, module: torch.nn.Module, graph: WatchedGraph) -> Frames:
        """Where a module got its last parameter or buffer since the capture of a graph."""
        names = [name for name in self._changes.get(module, {}) if name]
        places = (self.since(module, graph, name) for name in reversed(names))
        return next(filter(None, places), ())


class Inputs(Detector):
    """Names that lead to another tensor, and tensors that are freed."""

    def start(self) -> None:
        self._paths: dict[ExternalUse, list[Path]] = {}
        self._found: dict[int, list[Path]] = {}
        """By key of a storage: the paths to it as the capture began."""
        self._resized: dict[int | None, Frames] = {}
        """By key of a storage: where a tensor of it was resized last."""
        self._given_back: dict[int, list[tuple[int, Frames]]] = {}
        """By key of a storage: when and where its memory was given back."""
        self._moved = ModuleChanges()
        """Modules whose tensors were exchanged."""
        self._autocasts: list[Frames] = []
        """Where each autocast region was entered, outermost first."""
        self._casts: set[ExternalUse] = set()
        """Reported as casts of a weight."""
        self._freed: dict[Frames, list[tuple[WatchedGraph, int]]] = {}
        """By the line of the finding: the graphs, and the keys of what is freed."""
        self._others: dict[tuple[ExternalUse, str], int] = {}
        """By path: the key of the other tensor that it led to last."""
        self._compared: dict[ExternalUse, int] = {}
        """How often its values were compared."""
        self._shapes: set[tuple[int, ...]] = set()
        """Shapes of all tensors that graphs read from outside."""
        self._made = _Places()
        """For tensors with such a shape: when and where an op made them, or a call gave them to
        what had another one: an optimizer, or a tensor that got its memory in exchange."""

    def on_module_changed(self, event: events.ModuleChanged) -> None:
        if not event.is_train:
            self._moved.note(event.module, self.script, event.name or "")

    def on_capture_began(self, _event: events.CaptureBegan) -> None:
        self._found = {}
        for named in everything_named(stack_of(self.script.frame())):
            key = key_of(named.value) if isinstance(named.value, torch.Tensor) else None
            path = None if key is None else named.path()
            if key is not None and path is not None:
                self._found.setdefault(key, []).append(path)

    def on_capture_ended(self, _event: events.CaptureEnded) -> None:
        self._found = {}

    def on_capture_failed(self, _event: events.CaptureFailed) -> None:
        self._found = {}

    def on_op_captured(self, event: events.OpCaptured) -> None:
        for use in event.first_uses:
            self._shapes.add(use.shape)
            paths = self._found.get(use.buffer.key, [])
            own = [path for path in paths if path.kind == "parameter"]
            self._paths[use] = own[:1] or paths
        self._look_for_casts(event)

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        stack = stack_of(self.script.frame())
        for key, use in graph.external.items():
            if use.buffer.place == "host":
                continue
            is_sample = graph.callable is not None and key in graph.callable.static_keys
            if is_sample or self._is_resized(use) or self._is_rebound(graph, use, stack):
                continue
            if key not in graph.replaced:
                self._look_for_freed(graph, use)

    # Names that lead to another tensor.

    def _is_rebound(self, graph: WatchedGraph, use: ExternalUse, stack: Stack) -> bool:
        key, paths = use.buffer.key, self._paths.get(use, ())
        values = [(path, path.look(stack)) for path in paths]
        keys = [key_of(now) if isinstance(now, torch.Tensor) else None for _, now in values]
        # The items of a list come and go.
        pairs = list(zip(values, keys, strict=True))
        is_held = any(own == key and not path.is_listed for (path, _), own in pairs)
        for (path, now), own in pairs:
            owner = path.owner()
            if own is None:
                if owner is not None:
                    self._report_gone(graph, path, owner)
                    return True
            elif own != key and self._counts(use, path, own, is_held=is_held):
                is_another = (
                    self._is_moved(graph, own)
                    if path.kind in ("parameter", "state")
                    else self._replaces(graph, use, path, now, own)
                )
                if is_another:
                    self._report_rebound(graph, path, use, now)
                    return True
        return False

    def _counts(self, use: ExternalUse, path: Path, key: int, *, is_held: bool) -> bool:
        """Whether it says something that a path leads to another tensor. Where another path leads
        to the old one (``is_held``), only if there is a new one for each replay."""
        before, self._others[use, path.text] = self._others.get((use, path.text)), key
        return not is_held or before not in (None, key)

    def _is_moved(self, graph: WatchedGraph, key: int) -> bool:
        """Whether what a module or an optimizer has instead is not what another graph is for."""
        others = (each for each in self.script.replayable() if each is not graph)
        return not any(key in each.external for each in others)

    def _replaces(
        self, graph: WatchedGraph, use: ExternalUse, path: Path, now: torch.Tensor, key: int
    ) -> bool:
        """A new tensor under the old name is a mistake only if the graph was meant to read it."""
        if self._is_freed(use):
            return True
        if tuple(now.shape) != use.shape or self.script.device.place(now) != use.buffer.place:
            return False
        write, last = use.buffer.last_write, graph.last_replay
        if write is not None and write.graph is not graph and write.time > graph.began:
            return False
        # Captured code may have put what it computes where it has read: replays go on with the old
        # one. Else it is the input of another graph, or an output under an old name.
        is_next = path.kind == "attribute" and key in graph.allocated and last is not None
        if self.script.buffers.by_key(key) is not None and not is_next:
            return False
        return not self._has_same_values(use, now)

    def _has_same_values(self, use: ExternalUse, now: torch.Tensor) -> bool:
        """Whether a tensor has the values of the one that a graph reads; true as well if they
        cannot be compared."""
        old, count = use.tensor(), self._compared.get(use, 0)
        if old is None or count >= _COMPARISONS or self.script.capture is not None:
            return True
        self._compared[use] = count + 1
        if (now.shape, now.dtype, now.device) != (old.shape, old.dtype, old.device):
            return False
        try:
            with unobserved(), no_torch_function(), torch.no_grad():
                if now.dtype.is_floating_point:
                    # There are no ops for numbers of one byte.
                    return torch.allclose(now.float(), old.float(), equal_nan=True)
                return torch.equal(now, old)
        except (RuntimeError, NotImplementedError):  # some layouts cannot be compared
            return True

    def _report_gone(self, graph: WatchedGraph, path: Path, owner: Any) -> None:
        """A parametrization, or pruning, has put other parameters in its place; or an optimizer has
        lost its state."""
        name = path.text.partition(".state[")[0]
        self.report(
            _REBOUND[path.kind],
            f"`{path.text}` is gone since the capture; the replay reads the old one",
            self._moved_at(graph, path, owner) or None,
            fix="change the module before the capture, or capture again"
            if path.kind == "parameter"
            else f"reset the state of `{name}` in place: `zero_()` of each tensor",
            phase="replay",
        )

    def _report_rebound(
        self, graph: WatchedGraph, path: Path, use: ExternalUse, now: torch.Tensor
    ) -> None:
        frames = self._moved_at(graph, path, path.owner())
        with no_torch_function():
            address, is_alike = now.data_ptr(), tuple(now.shape) == use.shape
        old = "memory of the old one, which has been freed" if self._is_freed(use) else "old one"
        self.report(
            _REBOUND[path.kind],
            f"`{path.text}` is a different tensor than at the capture; the replay reads the {old}",
            frames or self._made_at(now, graph) or None,
            evidence=(
                f"{list(use.shape)} at {use.data_ptr:#x} when captured, {list(now.shape)} at "
                f"{address:#x} now",
            ),
            fix=None if is_alike else _FIX_OF_SHAPE,
            phase="replay",
        )

    def _made_at(self, tensor: torch.Tensor, graph: WatchedGraph) -> Frames:
        """Where a tensor was made since the capture of a graph; () if no line was seen."""
        time, frames = self._made.get(key_of(tensor)) or (-1, ())
        return frames if time >= graph.began else ()

    def _moved_at(self, graph: WatchedGraph, path: Path, module: Any) -> Frames:
        """Where a parameter or buffer was exchanged or deleted; () if no call was seen. Pruning and
        parametrizations register the old parameter under another name."""
        if path.kind != "parameter" or module is None:
            return ()
        name = str(path.steps[-1][1])
        found = self._moved.since(module, graph, name) or self._moved.since(module, graph)
        return found or self._moved.last_registered(module, graph)

    def on_eager_op(self, event: events.EagerOp) -> None:
        if event.op.name.startswith("aten::set_"):
            self._note(event.op.tensors[0])
        if event.op.name in ("aten::resize_", "aten::resize_as_"):
            for tensor in event.op.tensors[:1]:
                self._resized[key_of(tensor)] = self.script.place()

    def on_tensor_made(self, event: events.TensorMade) -> None:
        if tuple(event.tensor.shape) in self._shapes:
            self._note(event.tensor)

    def on_tensors_swapped(self, event: events.TensorsSwapped) -> None:
        for tensor in event.tensors:
            self._note(tensor)

    def on_optimizer_loaded(self, event: events.OptimizerLoaded) -> None:
        for tensor in event.tensors:
            self._note(tensor)

    def _note(self, tensor: torch.Tensor) -> None:
        if key_of(tensor) is not None:
            self._made.put(tensor, (self.script.clock, self.script.place()))

    # Memory that was freed, resized or given back.

    def on_storage_resized(self, event: events.StorageResized) -> None:
        line = self.script.clock, self.script.place()
        self._given_back.setdefault(event.key, []).append(line)

    def _is_resized(self, use: ExternalUse) -> bool:
        tensor = use.tensor()
        frames = self._resized.get(use.buffer.key)
        if tensor is None or frames is None:
            return False
        with no_torch_function():
            now, address = tuple(tensor.shape), tensor.data_ptr()
        if (now, address) == (use.shape, use.data_ptr):
            return False
        self.report(
            REPLAY_WITH_OTHER_SHAPE,
            f"`resize_` has changed the static input from {list(use.shape)} to {list(now)} since "
            "the capture; the replay uses the old shape and address",
            frames,
            phase="replay",
        )
        return True

    def _is_freed(self, use: ExternalUse) -> bool:
        # What another graph allocated lies in its pool, which keeps it. An empty tensor has none.
        own = use.buffer.allocated_in is None and use not in self._casts and 0 not in use.shape
        return own and self.script.device.is_dead(use.buffer.ref)

    def _look_for_freed(self, graph: WatchedGraph, use: ExternalUse) -> None:
        key, evidence = use.buffer.key, f"{use.call.name}, {list(use.shape)} at {use.data_ptr:#x}"
        paths = self._paths.get(use, ())
        named = [*(path for path in paths if path.steps), *paths]
        if self._is_freed(use):
            what = (
                f"the tensor that was `{named[0].text}`"
                if named
                else "the tensor that this line reads"
            )
            if named and named[0].kind == "parameter" and named[0].owner() is None:
                what = f"the module with `{named[0].text}`"
            finding = Finding(
                INPUT_FREED_BEFORE_REPLAY,
                f"{what} has been freed since the capture; the replay reads whatever is there now",
                phase="replay",
                evidence=(evidence,),
                # Pinned memory that was allocated in the capture may belong to the graph.
                severity=WARNING if use.buffer.place == "pinned" else None,
            )
            found = at_call(finding, use.call, graph.record)
            self.findings.add(found)
            self._freed.setdefault(found.frames, []).append((graph, key))
            return
        times = (frames for time, frames in self._given_back.get(key, ()) if time > graph.began)
        if given_back := next(times, ()):
            which = f"of `{named[0].text}`" if named else "of a tensor that the graph reads"
            self.report(
                INPUT_FREED_BEFORE_REPLAY,
                f"`resize_` has given the memory {which} back since the capture; the replay reads "
                "whatever is at the old address",
                given_back,
                fix="keep the memory of what the graph reads for as long as it is replayed, or "
                "capture again when it is back",
                evidence=(evidence,),
                phase="replay",
            )

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        """Where a gradient was set to None is reported at the next step of its optimizer."""
        for frames, freed in self._freed.items():
            if all(key in graph.replaced for graph, key in freed):
                self.findings.drop(INPUT_FREED_BEFORE_REPLAY, frames)

    # Weights that autocast cast before the capture.

    def on_autocast_entered(self, _event: events.AutocastEntered) -> None:
        self._autocasts.append(self.script.place())

    def on_autocast_left(self, _event: events.AutocastLeft) -> None:
        if self._autocasts:
            self._autocasts.pop()

    def _look_for_casts(self, event: events.OpCaptured) -> None:
        if not self._autocasts or not torch.is_autocast_cache_enabled():
            return
        for use in event.first_uses:
            tensor = use.tensor()
            if tensor is None or not _is_cast(tensor):
                continue
            self._casts.add(use)
            at = "".join(f" at {frame.short}" for frame in self.script.place()[:1])
            self.report(
                AUTOCAST_WEIGHT_CACHE,
                "the graph reads a cast of a weight that autocast made before the capture; it "
                "does not follow the weight, and is freed when the outermost autocast ends",
                self._autocasts[-1],
                phase="capture",
                evidence=(f"{event.op.name} reads {list(tensor.shape)} {tensor.dtype}{at}",),
            )


def _is_cast(tensor: torch.Tensor) -> bool:
    """A half-precision copy of a leaf: autocast keeps it, and nothing else does."""
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    node = tensor.grad_fn
    if not half or not tensor.requires_grad or node is None or "ToCopy" not in node.name():
        return False
    return any(
        source is not None and "AccumulateGrad" in source.name()
        for source, _ in node.next_functions
    )
