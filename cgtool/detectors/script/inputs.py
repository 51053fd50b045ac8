"""What a graph reads from outside: rebound, freed, resized, or cast before the capture."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch

from cgtool.detectors.reporting import Detector, at_call
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import NOTE, WARNING, Finding
from cgtool.observe.frames import Chain, frames_of
from cgtool.observe.lookup import MISSING, resolve
from cgtool.observe.script import events
from cgtool.observe.script.changes import Target, bound_after, changed_at, made_in, rebound_in
from cgtool.observe.script.names import Holders, Path, Stack, paths_to, stack_of
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import ExternalUse, WatchedGraph
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.observe.uses import Step, Use, uses_of, uses_of_block
from cgtool.torch_compat.op_key import unobserved
from cgtool.torch_compat.private import no_torch_function
from cgtool.torch_compat.storages import StorageMarks

AUTOCAST_WEIGHT_CACHE = code("autocast-weight-cache")
CPU_SCALAR_TENSOR_OPERAND = code("cpu-scalar-tensor-operand")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")
REPLAY_WITH_OTHER_SHAPE = code("replay-with-other-shape")
_REBOUND = {
    "name": code("input-rebound-not-copied"),
    "attribute": code("metadata-address-changed"),
    "item": code("metadata-address-changed"),
    "parameter": code("parameter-rebound"),
}
"""By kind of the path."""

_REBINDS: tuple[Target, ...] = ("attribute", "data"), ("call", "setattr")
"""How a line gives an object another tensor without naming where it is kept."""
_LOADS: tuple[Target, ...] = (("call", "load_state_dict"),)
"""The same, of an object that is no module and no optimizer: what loads those is known."""
_Places = StorageMarks[tuple[int, Frames]]
"""For each storage, a time and a line."""
_Part = tuple[int | None, int, tuple[int, ...]]
"""Of a tensor: the key of its storage, where it begins there, and its shape."""
_TRIALS = 16
"""How often an attribute that is gone is computed anew."""
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
        return frames if graphs >= graph.number else ()

    def last_registered(self, module: torch.nn.Module, graph: WatchedGraph) -> Frames:
        """Where a module got its last parameter or buffer since the capture of a graph."""
        names = [name for name in self._changes.get(module, {}) if name]
        places = (self.since(module, graph, name) for name in reversed(names))
        return next(filter(None, places), ())


class Inputs(Detector):
    """Names that are bound to another tensor, tensors that are freed, and numbers that changed."""

    def start(self) -> None:
        self._paths: dict[ExternalUse, list[Path]] = {}
        self._resized: dict[int | None, Frames] = {}
        """By key of a storage: where a tensor of it was resized last."""
        self._given_back: dict[int, list[tuple[int, Frames]]] = {}
        """By key of a storage: when and where its memory was given back."""
        self._holders = Holders()
        self._values: dict[ExternalUse, Any] = {}
        """Of host tensors that a kernel took as a number."""
        self._moved = ModuleChanges()
        """Modules whose tensors were exchanged."""
        self._autocasts: list[Frames] = []
        """Where each autocast region was entered, outermost first."""
        self._casts: set[ExternalUse] = set()
        """Reported as casts of a weight."""
        self._functions: dict[tuple[str, str], None] = {}
        """The files and names of the functions that run ops in the capture."""
        self._chains: dict[_Part, Chain] = {}
        """The call chain of the op of the capture that has made a tensor, or taken it as a view."""
        self._rebound: dict[ExternalUse, Frames] = {}
        """The line of the captured code that binds the name to another tensor."""
        self._made_inside: dict[ExternalUse, tuple[int | None, Frames]] = {}
        """The key of this tensor, and the line of the captured code that has made it."""
        self._around: dict[WatchedGraph, int] = {}
        """How many of the user's frames ran when the capture began."""
        self._freed: dict[Frames, list[tuple[WatchedGraph, int]]] = {}
        """By the line of the finding: the graphs, and the keys of what is freed."""
        self._trials: dict[ExternalUse, int] = {}
        """How often what is gone was computed anew."""

        self._shapes: set[tuple[int, ...]] = set()
        """Of all that graphs read from outside."""
        self._made = _Places()
        """Of tensors with such a shape: when and where an op made them."""
        self._given = _Places()
        """When and where a call gave a tensor to what had another one: an optimizer, or a tensor
        that got its memory in exchange for its own."""

    def on_module_changed(self, event: events.ModuleChanged) -> None:
        if not event.is_train:
            self._moved.note(event.module, self.script, event.name or "")

    def on_capture_began(self, event: events.CaptureBegan) -> None:
        self._around[event.graph] = len(stack_of(self.script.frame()))
        self._holders = Holders()
        self._functions, self._chains = {}, {}

    def on_op_captured(self, event: events.OpCaptured) -> None:
        chain = () if event.op.call is None else event.op.call.chain
        self._functions |= {(code.co_filename, code.co_qualname): None for code, _ in chain}
        given = {*map(_part_of, event.op.tensors)}
        for result in tensors_in(event.result):
            if (part := _part_of(result)) not in given:
                self._chains[part] = chain
        if event.op.name.startswith("aten::set_"):
            self._note(self._given, event.op.tensors[0])
        for use in event.first_uses:
            tensor = use.tensor()
            self._shapes.add(use.shape)
            if use.buffer.place != "host":
                frame = self.script.frame()
                self._paths[use] = paths_to(use.buffer.key, frame, self._holders)
            elif tensor is not None and tensor.numel() == 1:
                self._values[use] = _value(tensor)
        self._look_for_casts(event)

    def on_capture_ended(self, event: events.CaptureEnded) -> None:
        frame = self.script.frame()
        stack = stack_of(frame)
        self._holders = Holders()
        for key, use in event.graph.external.items():
            if any(_was_lent(path, key, event.graph, stack) for path in self._paths.get(use, ())):
                self._paths[use] = paths_to(key, frame, self._holders)
            for path in self._paths.get(use, ()):
                now = path.look(stack)
                if isinstance(now, torch.Tensor) and key_of(now) != key:
                    # Of several lines that bind it, the one that does after this was made.
                    made = frames_of(self._chains.get(_part_of(now), ()))
                    owner = type(resolve(path.root(stack), path.steps[:-1]))
                    frames = _bound_after(path, made)
                    if not frames and path.steps:
                        ran = event.graph.functions or self._functions
                        targets = (*path.steps[:-2:-1], *_rebinds(path), *path.steps[-2::-1])
                        frames = rebound_in(targets, ran, owner)
                        if not frames and path.kind == "item":
                            inner = [each for each in ran if each[1] != "<module>"]
                            frames = rebound_in((path.name,), inner)
                    self._rebound[use] = frames
                    self._made_inside[use] = key_of(now), made

    def on_replay_begins(self, event: events.ReplayBegins) -> None:
        graph = event.graph
        stack = stack_of(self.script.frame())
        for key, use in graph.external.items():
            if use.buffer.place == "host":
                self._compare_value(graph, use)
                continue
            if graph.callable is not None and key in graph.callable.static_keys:
                continue
            rebound = self._is_rebound(graph, use, stack) or self._is_resized(use)
            if rebound or key in graph.replaced:
                continue
            if self._is_freed(use):
                self._report_freed(graph, use, stack)
            elif given_back := self._given_back_since(graph, key):
                self._report_given_back(use, given_back)
            else:
                self._look_for_computed(graph, use, stack)

    def _is_freed(self, use: ExternalUse) -> bool:
        # What another graph allocated lies in its pool, which keeps it. An empty tensor has none.
        own = use.buffer.allocated_in is None and use not in self._casts and 0 not in use.shape
        return own and self.script.device.is_dead(use.buffer.ref)

    def on_storage_resized(self, event: events.StorageResized) -> None:
        line = self.script.clock, self.script.place()
        self._given_back.setdefault(event.key, []).append(line)

    def _given_back_since(self, graph: WatchedGraph, key: int) -> Frames:
        """Where the memory of a storage was given back first, since a capture; () if it was not."""
        lines = self._given_back.get(key, ())
        return next((frames for time, frames in lines if time > graph.began), ())

    def on_eager_op(self, event: events.EagerOp) -> None:
        if event.op.name.startswith("aten::set_"):
            self._note(self._given, event.op.tensors[0])
        if event.op.name in ("aten::resize_", "aten::resize_as_"):
            for tensor in event.op.tensors[:1]:
                self._resized[key_of(tensor)] = self.script.place()

    def on_tensor_made(self, event: events.TensorMade) -> None:
        if tuple(event.tensor.shape) in self._shapes:
            self._note(self._made, event.tensor)

    def on_tensors_swapped(self, event: events.TensorsSwapped) -> None:
        for tensor in event.tensors:
            self._note(self._given, tensor)

    def on_optimizer_loaded(self, event: events.OptimizerLoaded) -> None:
        for tensor in event.tensors:
            self._note(self._given, tensor)

    def _note(self, places: _Places, tensor: torch.Tensor) -> None:
        if key_of(tensor) is not None:
            places.put(tensor, (self.script.clock, self.script.place()))

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

    def on_input_replaced(self, event: events.InputReplaced) -> None:
        use = event.graph.external.get(event.key)
        stack = stack_of(self.script.frame())
        for path in self._paths.get(use, ()) if use is not None else ():
            now = path.look(stack)
            is_in_list = path.kind == "item" and not _is_of_object(path, stack)
            if not isinstance(now, torch.Tensor) or is_in_list or use is None:
                continue
            is_known = self._rebound_at(event.graph, path, use, now, stack)
            if key_of(now) != event.key and is_known:
                self._report_rebound(event.graph, path, use, now, stack)
                return

    def _is_rebound(self, graph: WatchedGraph, use: ExternalUse, stack: Stack) -> bool:
        for path in self._paths.get(use, ()):
            now = path.look(stack)
            module = None if path.module is None else path.module()
            if module is not None and (now is MISSING or now is None):
                self._report_taken(graph, path, module)
                return True
            if now is MISSING and path.optimizer is not None and path.optimizer() is not None:
                self._report_reset(graph, path, stack)
                return True
            new_key = key_of(now) if isinstance(now, torch.Tensor) else None
            if new_key is None or new_key == use.buffer.key:
                continue
            is_moved = self._is_moved(graph, path, use.buffer.key, new_key, stack)
            if not (
                path.kind == "parameter"
                or is_moved
                or self._replaces(graph, use, now, new_key)
                or (_is_of_object(path, stack) and self._succeeds(graph, use, now, new_key))
            ):
                continue
            self._report_rebound(graph, path, use, now, stack)
            return True
        return False

    def _is_moved(
        self, graph: WatchedGraph, path: Path, own_key: int, key: int, stack: Stack
    ) -> bool:
        """Whether it names another tensor of the graph, and names have changed places: items of one
        container, or names of grids that are exchanged after each step. Another graph may be meant
        for the other order."""
        other, both = graph.external.get(key), graph.external.keys() & {key, own_key}
        if other is None or any(
            graph.is_alternative_to(each) or (each is not graph and both <= each.external.keys())
            for each in self.script.graphs
        ):
            return False
        if path.kind != "item":
            paths = (each.look(stack) for each in self._paths.get(other, ()))
            keys = {key_of(now) for now in paths if isinstance(now, torch.Tensor)}
            return key not in keys and not keys.isdisjoint(graph.external)
        container = path.root(stack)
        return any(
            each.kind == "item"
            and each.steps[:-1] == path.steps[:-1]
            and each.root(stack) is container
            for each in self._paths.get(other, ())
        )

    def _report_taken(self, graph: WatchedGraph, path: Path, module: torch.nn.Module) -> None:
        """A parametrization, or pruning, has put other parameters in its place."""
        self.report(
            _REBOUND[path.kind],
            f"`{path.text}` is no longer a parameter or buffer of its module; the replay reads the "
            "old one",
            self._moved_at(graph, path, module) or None,
            fix="change the module before the capture, or capture again",
            phase="replay",
        )

    def _report_reset(self, graph: WatchedGraph, path: Path, stack: Stack) -> None:
        """An optimizer has lost its state."""
        name = path.text.partition(".state[")[0]
        self.report(
            _REBOUND[path.kind],
            f"`{path.text}` is gone since the capture; the replay goes on with the old state",
            _loaded_at(path, stack, graph) or None,
            fix=f"reset the state of `{name}` in place: `zero_()` of each tensor",
            phase="replay",
        )

    def _replaces(self, graph: WatchedGraph, use: ExternalUse, now: torch.Tensor, key: int) -> bool:
        """A new tensor under the old name is a mistake only if the graph was meant to read it."""
        if self._is_freed(use):
            return True
        if tuple(now.shape) != use.shape or self.script.device.place(now) != use.buffer.place:
            return False
        since = graph.began if graph.last_replay is None else graph.last_replay.time
        write = use.buffer.last_write
        if write is not None and write.graph is None and write.time > since:
            return False
        # The input of the next graph, or an output, under a name that is used again.
        return self.script.buffers.by_key(key) is None

    def _succeeds(self, graph: WatchedGraph, use: ExternalUse, now: torch.Tensor, key: int) -> bool:
        """Whether captured code has put a tensor that it computes where it read one: eager code
        goes on with the new one, replays read the old one. Not if they have the same values, nor
        if the old one has been written since: somebody copies."""
        old = use.tensor()
        is_due = graph.last_replay is not None and self.script.capture is None
        if old is None or not is_due or key not in graph.allocated or key in graph.external:
            return False
        write = use.buffer.last_write
        if write is not None and write.time > graph.began and write.graph is not graph:
            return False
        try:
            with unobserved(), no_torch_function(), torch.no_grad():
                return not _has_values_of(now, old)
        except (RuntimeError, NotImplementedError):  # some layouts cannot be compared
            return False

    def _report_rebound(
        self, graph: WatchedGraph, path: Path, use: ExternalUse, now: torch.Tensor, stack: Stack
    ) -> None:
        frames = self._rebound_at(graph, path, use, now, stack)
        with no_torch_function():
            address, is_alike = now.data_ptr(), tuple(now.shape) == use.shape
        old = "memory of the old one, which has been freed" if self._is_freed(use) else "old one"
        self.report(
            _REBOUND[path.kind],
            f"`{path.text}` is a different tensor than at the capture; the replay reads the {old}",
            frames or None,
            evidence=(
                f"{list(use.shape)} at {use.data_ptr:#x} when captured, {list(now.shape)} at "
                f"{address:#x} now",
            ),
            fix=None if is_alike else _FIX_OF_SHAPE,
            phase="replay",
        )

    def _rebound_at(
        self, graph: WatchedGraph, path: Path, use: ExternalUse, now: torch.Tensor, stack: Stack
    ) -> Frames:
        """Where it got another tensor; () if that is not known."""
        module = None if path.module is None else path.module()
        key, made = self._made_inside.get(use, (None, ()))
        is_of_capture = key is not None and key == key_of(now)
        # A name may be bound again where the script goes on.
        frames = self._rebound.get(use, ()) if path.steps or is_of_capture else ()
        frames = frames or _seen(self._given, now, graph) or (made if is_of_capture else ())
        if not frames and module is not None:
            frames = self._moved_at(graph, path, module)
        frames = frames or _bound_at(path, stack, graph)
        if not frames and module is not None:
            # Pruning and parametrizations register the old parameter under another name.
            frames = self._moved.last_registered(module, graph)
        if not frames:
            # Several lines may have bound it: one of those that have made it, or the next.
            made = _seen(self._made, now, graph)
            frames = _bound_after(path, made) or _loaded_at(path, stack, graph) or made
        return frames

    def _moved_at(self, graph: WatchedGraph, path: Path, module: torch.nn.Module) -> Frames:
        """Where a parameter or buffer was exchanged or deleted; () if no call was seen."""
        name = str(path.steps[-1][1])
        return self._moved.since(module, graph, name) or self._moved.since(module, graph)

    def _look_for_computed(self, graph: WatchedGraph, use: ExternalUse, stack: Stack) -> None:
        """What the captured code read is gone, and eager code would compute it anew, from the
        values of now: a ``cached_property``, an item of a cache that a method fills."""
        if self._trials.get(use, 0) >= _TRIALS:
            return
        for path in self._paths.get(use, ()):
            compute, name = self._computed(path, stack)
            if compute is None:
                continue
            # The captured code may have read it under another name.
            if not self._reads(graph, use, ("attribute", name)):
                continue
            self._trials[use] = self._trials.get(use, 0) + 1
            has_same_values = self._has_same_values(compute, use)
            if not has_same_values:
                self._trials[use] = _TRIALS
                steps = path.steps[::-1]
                place = changed_at(steps, stack.values(), graph, only_taken=True)
                computed = "computed anew"
                if has_same_values is None:
                    computed += ", perhaps with the same values"
                self.report(
                    _REBOUND[path.kind],
                    f"`{path.text}` is gone since the capture, and would be {computed}; the "
                    "replay reads the old tensor",
                    place or frames_of(use.call.chain),
                    fix=_refill(path),
                    phase="replay",
                    severity=NOTE if has_same_values is None else None,
                )
            return

    def _computed(self, path: Path, stack: Stack) -> tuple[Callable[[], Any] | None, str]:
        """What computes an attribute or an item that is gone, and the name by which code asks for
        it; None if it is there, or nothing does."""
        if path.module is not None or path.optimizer is not None or not path.steps:
            return None, ""
        owner = resolve(path.root(stack), path.steps[:-1])
        if owner is MISSING or owner is None or path.look(stack) is not MISSING:
            return None, ""
        kind, last = path.steps[-1]
        compute = _by_class(owner, str(last)) if kind == "attribute" else None
        if compute is not None:
            return compute, str(last)
        if kind == "item" and len(path.steps) > 1:
            owner = resolve(path.root(stack), path.steps[:-2])
        for function in made_in(path.steps, {file for file, _ in self._functions}):
            method = _method(owner, function)
            given = None if method is None else _arguments(method, last)
            if method is not None and given is not None:
                return partial(_made, path, stack, method, owner, given), method.__name__
        return None, ""

    def _reads(self, graph: WatchedGraph, use: ExternalUse, step: Step) -> bool:
        """Whether the captured functions that lead to the first op with a tensor read a part of
        something that is named so."""
        chain, (first, last) = use.call.chain, graph.lines
        called = chain[: max(0, len(chain) - self._around.get(graph, 0))]
        uses = [each for code, _ in called for each in _uses_in(code)]
        for around, _ in chain[len(called) : len(called) + 1]:
            uses += [each for each in _uses_in(around) if first <= each.line <= last]
            uses += uses_of_block(around, graph.lines)
        return any(step in each.steps for each in uses)

    def _has_same_values(self, compute: Callable[[], Any], use: ExternalUse) -> bool | None:
        """Whether what is computed has the values of the tensor that the graph reads; None if that
        cannot be tried."""
        old = use.tensor()
        if old is None:
            return False

        def answer() -> bytes:
            torch.set_num_threads(1)  # those of the script are not in this process
            self.script.closed = True
            new = compute()
            with unobserved(), no_torch_function(), torch.no_grad():
                return b"same" if _has_values_of(new, old) else b"other"

        answered = self.script.device.tried(answer)
        return answered == b"same" if answered in (b"same", b"other") else None

    def _report_freed(self, graph: WatchedGraph, use: ExternalUse, stack: Stack) -> None:
        paths = self._paths.get(use, ())
        thrown = [path for path in paths if self._is_thrown_away(path, stack)]
        named = [*thrown, *(path for path in paths if path.steps), *paths]
        what = (
            f"the tensor that was `{named[0].text}`" if named else "the tensor that this line reads"
        )
        if named and named[0].module is not None and named[0].module() is None:
            what = f"the module with `{named[0].text}`"
        finding = Finding(
            INPUT_FREED_BEFORE_REPLAY,
            f"{what} has been freed since the capture; the replay reads whatever is there now",
            phase="replay",
            evidence=(f"{use.call.name}, {list(use.shape)} at {use.data_ptr:#x}",),
            fix=_refill(thrown[0]) if thrown else None,
            # Pinned memory that was allocated in the capture may belong to the graph.
            severity=WARNING if use.buffer.place == "pinned" else None,
        )
        found = at_call(finding, use.call, graph.record)
        self.findings.add(found)
        self._freed.setdefault(found.frames, []).append((graph, use.buffer.key))

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        """Where a gradient was set to None is reported at the next step of its optimizer."""
        for frames, freed in self._freed.items():
            if all(key in graph.replaced for graph, key in freed):
                self.findings.drop(INPUT_FREED_BEFORE_REPLAY, frames)

    def _report_given_back(self, use: ExternalUse, given_back: Frames) -> None:
        names = [path.text for path in self._paths.get(use, ())]
        which = f"of `{names[0]}`" if names else "of a tensor that the graph reads"
        self.report(
            INPUT_FREED_BEFORE_REPLAY,
            f"`resize_` has given the memory {which} back since the capture; the replay reads "
            "whatever is at the old address",
            given_back,
            fix="keep the memory of what the graph reads for as long as it is replayed, or capture "
            "again when it is back",
            evidence=(f"{use.call.name}, {list(use.shape)} at {use.data_ptr:#x}",),
            phase="replay",
        )

    def _is_thrown_away(self, path: Path, stack: Stack) -> bool:
        """Whether the object that had it is there without it, and would make it anew."""
        if self._computed(path, stack)[0] is not None:
            return True
        now = path.look(stack) if path.steps else MISSING
        owner = resolve(path.root(stack), path.steps[:-1])
        is_gone = (now is MISSING or now is None) and owner is not MISSING and owner is not None
        return (
            bool(path.steps)
            and is_gone
            and bool(made_in(path.steps, {file for file, _ in self._functions}))
        )

    def _compare_value(self, graph: WatchedGraph, use: ExternalUse) -> None:
        tensor, before = use.tensor(), self._values.get(use)
        if tensor is None or before is None:
            return
        now = _value(tensor)
        if now != before:
            finding = Finding(
                CPU_SCALAR_TENSOR_OPERAND,
                "the capture made this CPU tensor a constant of the kernel; the replay does not "
                "see its new value",
                phase="replay",
                evidence=(f"{use.call.name}: {before} when captured, {now} now",),
            )
            self.findings.add(at_call(finding, use.call, graph.record))

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


def _part_of(tensor: torch.Tensor) -> _Part:
    with no_torch_function():
        offset = int(tensor.storage_offset()) if tensor.layout == torch.strided else 0
        return key_of(tensor), offset, tuple(tensor.shape)


def _seen(places: _Places, tensor: torch.Tensor, graph: WatchedGraph) -> Frames:
    """The place of a tensor in a table, if it is from after the capture of a graph; else ()."""
    time, frames = places.get(key_of(tensor)) or (-1, ())
    return frames if time >= graph.began else ()


def _was_lent(path: Path, key: int, graph: WatchedGraph, stack: Stack) -> bool:
    """Whether a module had a tensor as its parameter for a call only (``functional_call``), and has
    its own again."""
    now = path.look(stack) if path.kind == "parameter" else None
    own = key_of(now) if isinstance(now, torch.Tensor) else None
    return own is not None and own != key and own not in graph.allocated


def _is_of_object(path: Path, stack: Stack) -> bool:
    """Whether it leads to an attribute, or to an item of a dictionary. What moves the items of a
    list is reported elsewhere (``histories``)."""
    owner = resolve(path.root(stack), path.steps[:-1]) if path.steps else None
    return owner is not None and not isinstance(owner, list | deque)


def _rebinds(path: Path) -> tuple[Target, ...]:
    return _REBINDS if path.module or path.optimizer else (*_REBINDS, *_LOADS)


def _bound_after(path: Path, made: Frames) -> Frames:
    """The line that bound the path to what was made at ``made``; () if it is not known."""
    last = path.steps[-1:] or (("name", path.text),)
    frames = bound_after((*last, *_rebinds(path)), made)
    if not frames and path.kind == "attribute":
        # An object with other tensors may have taken the place of the one before.
        frames = bound_after(path.steps[-2::-1], made)
    if not frames and path.kind == "item":
        # With a key that is no constant, or in a container that has taken the place of another.
        name = path.name
        container = path.steps[-2] if len(path.steps) > 1 else name
        frames = bound_after((container,), made, in_place=True)
        frames = frames or bound_after((*path.steps[-2::-1], name), made)
    return frames


def _bound_at(path: Path, stack: Stack, graph: WatchedGraph) -> Frames:
    """The line that bound the path to another tensor since the capture; () if it is not known."""
    moved = path.moved(stack)
    if moved is not None:
        local_to = path.frame if moved == path.name else None
        frames = changed_at((moved,), stack.values(), graph, local_to=local_to, only_bound=True)
        if frames:
            return frames
    targets = (*path.steps[::-1], *_rebinds(path)) if path.steps else (("name", path.text),)
    local_to = None if path.steps else path.frame
    frames = changed_at(targets, stack.values(), graph, local_to=local_to, only_bound=True)
    if frames or path.kind != "item":
        return frames
    # A method has changed the container (`reverse`, `insert`, `rotate`), or another got its name.
    name = path.name
    if path.frame is not None:
        frames = changed_at((name,), stack.values(), graph, local_to=path.frame)
    container = path.steps[-2] if len(path.steps) > 1 else name
    return frames or changed_at((container, name), stack.values(), graph)


def _loaded_at(path: Path, stack: Stack, graph: WatchedGraph) -> Frames:
    """The line that changed the state of the optimizer that a path leads through; () if it is not
    known, or for another path."""
    optimizer = None if path.optimizer is None else path.optimizer()
    if optimizer is None:
        return ()
    targets: tuple[Target, ...] = ("attribute", "state"), ("call", "__setstate__")
    return changed_at(targets, stack.values(), graph, owner=type(optimizer))


def _by_class(owner: Any, name: str) -> Callable[[], Any] | None:
    """What computes an attribute that an object has not, as its class says."""
    if name in getattr(owner, "__dict__", {name: None}):
        return None
    kind = type(owner)
    member = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    get = getattr(type(member), "__get__", None)
    return None if get is None else partial(get, member, owner, kind)


def _method(owner: Any, function: str) -> FunctionType | None:
    """The method of an object, or the function of its property, with this qualified name."""
    kind, _, name = function.rpartition(".")
    base = next((each for each in type(owner).__mro__ if each.__qualname__ == kind), object)
    member = vars(base).get(name)
    member = member.fget if isinstance(member, property) else member
    return member if isinstance(member, FunctionType) else None


def _arguments(method: FunctionType, key: str | int) -> tuple[Any, ...] | None:
    """What a method needs that makes the item of a key: the key, or nothing; None for more."""
    code = method.__code__
    needed = code.co_argcount - len(method.__defaults__ or ()) - 1
    needed += code.co_kwonlyargcount - len(method.__kwdefaults__ or {})
    return {0: (), 1: (key,)}.get(needed)


def _made(path: Path, stack: Stack, method: FunctionType, owner: Any, given: Any) -> Any:
    method(owner, *given)
    return path.look(stack)


def _uses_in(code: CodeType) -> list[Use]:
    return [*uses_of(code), *uses_of(code, "local")]


def _has_values_of(new: Any, old: torch.Tensor) -> bool:
    if not isinstance(new, torch.Tensor) or (new.shape, new.dtype) != (old.shape, old.dtype):
        return False
    if new.device != old.device:
        return False
    if not new.is_floating_point():
        return new.equal(old)
    # There are no ops for numbers of one byte.
    if new.dtype.itemsize == 1:
        new, old = new.float(), old.float()
    return torch.allclose(new, old, equal_nan=True)


def _refill(path: Path) -> str:
    return f"refill `{path.text}` in place, with `copy_()`, instead of throwing it away"


def _value(tensor: torch.Tensor) -> Any:
    with unobserved(), no_torch_function():
        return tensor.detach().reshape(-1).tolist()[0]


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
