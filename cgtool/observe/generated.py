"""Maps code that Inductor generated to the ops, lines and modules of the user's program.

Above each launch in generated code, a comment has the names of the nodes that it was made from::

    # Topologically Sorted Source Nodes: [linear, h], Original ATen: [aten.addmm, aten.gelu]

The names in a forward are nodes of the graph that Dynamo traced, which has their Python frames and
modules. The names in a backward are nodes of the graph that Inductor lowered; its text has the
innermost frame of each. Both are known whether the code was just compiled or comes from a cache;
only code that was just compiled also has the nodes of the lowered graph, with all their frames.
Inductor's own map from lines to frames is empty where it partitions graphs; it is used where the
comments name no nodes (backwards before PyTorch 2.9).
"""

from __future__ import annotations

import contextlib
import linecache
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from operator import attrgetter, itemgetter
from types import CodeType
from typing import Any, NamedTuple

from msgspec.structs import replace

from cgtool.model.capture import Frame, Frames
from cgtool.model.notebook import named_by_cell
from cgtool.observe.frames import Site, is_internal_file, line_of
from cgtool.torch_compat import inductor
from cgtool.torch_compat.inductor import TracedNode, is_graph_module, is_view
from cgtool.torch_compat.patches import Patches


class Source(NamedTuple):
    """The ops, line and module of the user's program behind a launch in generated code."""

    ops: tuple[str, ...] = ()
    """``("aten.add", "aten.gelu")``: all that were fused."""
    frames: Frames = ()
    """The user's frames of the op whose result it is, innermost first; () if unknown."""
    module: tuple[str, str] | None = None
    """Path and type of the module that runs this op."""


class GeneratedCode:
    """The generated code of this process, followed from the import of Inductor on."""

    def __init__(self, patches: Patches) -> None:
        self._traced: dict[Hashable, dict[str, TracedNode]] = {}
        """Nodes that Dynamo traced, by compilation and by name."""
        self._compiled: dict[str, dict[str, TracedNode]] = {}
        """Nodes of lowered graphs that were just compiled, by the key of the graph and by name."""
        self._files: dict[str, _File] = {}
        self._by_code: dict[int, tuple[CodeType, _File]] = {}
        """The file of each function, by the id of its code: code objects with the same text are
        equal."""
        patches.wrap_later(*inductor.COMPILE_FX, self._compile_fx)
        patches.wrap_later(*inductor.POST_COMPILE, self._post_compile)
        patches.wrap_later(*inductor.LOWERING, self._lowering)

    @property
    def is_used(self) -> bool:
        """Whether there is any."""
        return bool(self._compiled or self._files)

    def source(self, site: Site) -> Source:
        """The source of a line of generated code."""
        code = site[0]
        _, file = self._by_code.get(id(code), (None, None))
        file = file or self._files.get(code.co_filename) or _File(code.co_filename, "", {}, {})
        line = line_of(site)
        source = file.source(line)
        if source.frames:
            return source
        mapped = inductor.mapped_frames(code.co_filename, line)
        frames = (Frame(each["filename"], each["line"], each["name"]) for each in mapped)
        return source._replace(frames=_of_user(frames))

    def _compile_fx(self, original: Any, graph_module: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # the program compiles, whatever we read
            nodes = {node.name: node for node in inductor.traced_nodes(graph_module)}
            self._traced[inductor.compilation()] = nodes
        return original(graph_module, *args, **kwargs)

    def _post_compile(self, original: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            self._lowered(graph)
        return original(graph, *args, **kwargs)

    def _lowering(self, original: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        original(graph, *args, **kwargs)
        with contextlib.suppress(Exception):
            [module] = (each for each in (*args, *kwargs.values()) if is_graph_module(each))
            nodes = {node.name: node for node in inductor.traced_nodes(module)}
            self._compiled[graph.cache_key] = nodes

    def _lowered(self, graph: Any) -> None:
        lowered = inductor.lowered_code(graph)
        if lowered is not None:
            traced = self._traced.get(inductor.compilation(), {})
            compiled = self._compiled.get(lowered.key, {})
            file = self._files[lowered.file] = _File(lowered.file, lowered.graph, traced, compiled)
            self._by_code.update((id(code), (code, file)) for code in lowered.code)


_NAMES = "Source Nodes: ["
_COMMENT = re.compile(rf"# .*{re.escape(_NAMES)}(.*?)\](?:, Original ATen: \[(.*?)\])?")
_RUN, _CALLS = ".run(", ("extern_kernels.", "torch.ops.", "aten.")
"""Text in the launch of a kernel that Inductor fused, and texts in the calls of other ops."""
_IS_COMMENT = re.compile(r"\s*#")
_DEFINITION = re.compile(r"^\s*(?:async def|def|class) ")
_PLACE = re.compile(r"# .*?File: (.*):(\d+) in (.*?), code: ")
_NODE = re.compile(r'(\w+)(?:: "[^"]*")? = ([^;]*)')
_CALLED = re.compile(r"torch\.ops\.(\w+)\.(\w+)")
_NAME = re.compile(r"[a-z_]\w*")
_BACKWARD = re.compile(r"def forward\(.*\btangents_")
_BUFFER = re.compile(r"\bbuf\d+\b")
_SEEDS = "prims.inductor_seeds"
"""The op behind the only call that has no source node: the seeds of a graph's random numbers."""
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')
_ROOT = re.compile(r"^[A-Z]\['[^']*'\]")
_ITEM = re.compile(r"(?:\._modules)?\[['\"]?([^\]'\"]*)['\"]?\]")


class _Launch(NamedTuple):
    """A launch in generated code."""

    names: tuple[str, ...]
    """Source nodes, in topological order."""
    ops: tuple[str, ...]
    calls_op: bool
    """Whether it calls an op; other launches run a kernel that Inductor fused."""


class _Lowered(NamedTuple):
    """A node of the graph that a file was lowered from."""

    name: str
    op: str
    frame: Frame | None
    inputs: tuple[str, ...]


_Near = tuple[int, _Lowered]
"""The distance of a node with a line, and that node."""


class _Origin(NamedTuple):
    """The op, frames and module of a source node."""

    op: str
    frames: Frames
    module: tuple[str, str] | None


class _File:
    """A file of generated code."""

    def __init__(
        self,
        file: str,
        graph: str,
        traced: Mapping[str, TracedNode],
        compiled: Mapping[str, TracedNode],
    ) -> None:
        """``graph`` is the graph that it was lowered from; ``traced`` are nodes of Dynamo's;
        ``compiled`` are those of ``graph``, if it was compiled now."""
        self._file = file
        self._text = graph
        self._traced = traced
        self._compiled = compiled
        self._nodes: dict[str, _Origin | None] = {}

    def source(self, line: int) -> Source:
        """The source of the launch in a line of this file."""
        launch = self._launches.get(line)
        if launch is None:
            return Source()
        if not launch.names and not launch.calls_op:
            return self._user(line)
        origin = self._origin(line, launch)
        if origin is None:
            return Source(launch.ops)
        return Source(launch.ops, origin.frames, origin.module)

    def _user(self, line: int) -> Source:
        """The source of the next launch that has a buffer of this one: Inductor names none for a
        kernel that only gives an input another layout."""
        buffers = {*_BUFFER.findall(linecache.getline(self._file, line))}
        for number in self._launches:
            if number > line and buffers & {
                *_BUFFER.findall(linecache.getline(self._file, number))
            }:
                return self.source(number)
        return Source()

    @cached_property
    def _launches(self) -> dict[int, _Launch]:
        """The launches, by line; each follows the comment that describes it."""
        launches: dict[int, _Launch] = {}
        lists: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        for number, text in enumerate(linecache.getlines(self._file), 1):
            # Most lines are those of kernels, and this runs while the program does.
            if _NAMES in text and (comment := _COMMENT.search(text)) is not None:
                names, ops = comment.groups()
                lists = _listed(names), _listed(ops)
            elif lists is None:
                continue
            elif _DEFINITION.match(text):
                lists = None
            elif not _IS_COMMENT.match(text):
                runs_kernel = _RUN in text
                calls_op = not runs_kernel and any(each in text for each in _CALLS)
                launches[number] = _Launch(*lists, calls_op)
                if runs_kernel or calls_op:
                    lists = None
        return launches

    @cached_property
    def _called(self) -> frozenset[str]:
        """Source nodes whose op is called. A kernel that has one among its others only shapes its
        inputs or finishes its result."""
        launches = self._launches.values()
        return frozenset(each.names[-1] for each in launches if each.calls_op and each.names)

    def _origin(self, line: int, launch: _Launch) -> _Origin | None:
        """The origin of a launch's result: the last source node that computes something."""
        if launch.calls_op and not self._is_known(launch):
            origin = self._replacement(line, launch)
            if origin is not None:
                return origin
        last = self._last(launch)
        if last is None or last.module is not None or launch.calls_op or is_view(last.op):
            return last
        # A sum of gradients is of no module, but is fused with the backward of one.
        beside = (
            node.module for _, node in self._known(launch) if node.frames[:1] == last.frames[:1]
        )
        return last._replace(module=next(filter(None, beside), None))

    def _last(self, launch: _Launch) -> _Origin | None:
        """The last source node, or of a kernel that was fused, the last one that computes something
        and is not called elsewhere, if there is one."""
        view = called = None
        for name, node in self._known(launch):
            if launch.calls_op:
                return node
            if is_view(node.op):
                view = view or node
            elif name not in self._called:
                return node
            else:
                called = called or node
        return called or view

    def _known(self, launch: _Launch) -> Iterator[tuple[str, _Origin]]:
        """Source nodes with a line of the user's, by name, the last one first. A kernel may fuse
        dozens, and most often the first of these is enough."""
        for name in reversed(launch.names):
            node = self._node(name)
            if node is not None:
                yield name, node

    def _node(self, name: str) -> _Origin | None:
        """A source node by its name; None without a line of the user's. A kernel that fuses many
        names them all."""
        if name not in self._nodes:
            self._nodes[name] = self._looked_up(name)
        return self._nodes[name]

    def _looked_up(self, name: str) -> _Origin | None:
        traced, lowered = self._traced.get(name), self._graph.get(name)
        if traced is not None and not (self._is_backward and lowered is not None):
            frames = _frames(traced.stack)
            return _Origin(traced.op, frames, _path(traced.module)) if frames else None
        return None if lowered is None else self._lowered(lowered)

    def _lowered(self, node: _Lowered) -> _Origin | None:
        """The origin of a node of the lowered graph, from the nearest node with a line.

        Nodes that replaced others have no line, except the one that gives their result."""
        for nearest in (lambda: self._nearest_user, lambda: self._nearest_input):
            near = nearest().get(node.name)
            if near is not None:
                return self._placed(node.op, near[1])
        return None

    def _placed(self, op: str, node: _Lowered) -> _Origin | None:
        compiled = self._compiled.get(node.name)
        if compiled is not None and (frames := _frames(compiled.stack)):
            return _Origin(op, frames, _path(compiled.module))
        if node.frame is None or is_internal_file(node.frame.file):
            return None
        # From a cache: a line in a loop over layers has the calls of all of them.
        stacks, modules = self._by_line.get((node.frame.file, node.frame.line), (set(), set()))
        frames = _frames(*stacks) if len(stacks) == 1 else (node.frame,)
        return _Origin(op, frames, _path(*modules) if len(modules) == 1 else None)

    def _replacement(self, line: int, launch: _Launch) -> _Origin | None:
        """The origin of a called op whose source node is in no graph, because it replaced others.

        It is the first, second, ... of the graph's nodes with this op that are no source nodes."""
        op = launch.ops[-1] if launch.ops else _SEEDS
        lines = (
            number
            for number, each in self._launches.items()
            if each.calls_op and each.ops[-1:] == launch.ops[-1:] and not self._is_known(each)
        )
        nodes = (
            node for node in self._graph.values() if node.op == op and node.name not in self._called
        )
        node = dict(zip(lines, nodes, strict=False)).get(line)
        return None if node is None else self._lowered(node)

    def _is_known(self, launch: _Launch) -> bool:
        last = launch.names[-1] if launch.names else None
        return last in self._traced or last in self._graph

    @cached_property
    def _graph(self) -> dict[str, _Lowered]:
        """The graph that the file was lowered from, by name."""
        nodes: dict[str, _Lowered] = {}
        frame: Frame | None = None
        for text in self._text.splitlines():
            line = text.strip()
            if line.startswith("#"):
                if line.startswith("# No stacktrace"):
                    frame = None
                elif place := _PLACE.match(line):
                    frame = Frame(place[1], int(place[2]), place[3])
            elif node := _NODE.match(line):
                name, expression = node.groups()
                called = _CALLED.match(expression)
                op = f"{called[1]}.{called[2]}" if called else "getitem"
                found = _NAME.findall(expression, called.end() if called else 0)
                inputs = tuple([each for each in found if each in nodes])
                nodes.setdefault(name, _Lowered(name, op, frame, inputs))
        return nodes

    @cached_property
    def _nearest_user(self) -> dict[str, _Near]:
        """For each node, the nearest node with a line among itself and those that use its
        result."""
        users: dict[str, list[str]] = {name: [] for name in self._graph}
        for node in self._graph.values():
            for name in node.inputs:
                users[name].append(node.name)
        return _nearest(reversed(self._graph.values()), lambda node: users[node.name])

    @cached_property
    def _nearest_input(self) -> dict[str, _Near]:
        """For each node, the nearest node with a line among itself and its inputs, direct or
        not."""
        return _nearest(self._graph.values(), attrgetter("inputs"))

    @cached_property
    def _by_line(self) -> dict[tuple[str, int], tuple[set[str], set[tuple[str, str] | None]]]:
        """Stacks and modules of Dynamo's nodes by the place of their innermost frame."""
        places: defaultdict[tuple[str, int], tuple[set[str], set[tuple[str, str] | None]]] = (
            defaultdict(lambda: (set(), set()))
        )
        for stack, module in {(node.stack, node.module) for node in self._traced.values()}:
            for file, line, _ in _FRAME.findall(stack, max(stack.rfind("File "), 0)):
                stacks, modules = places[file, int(line)]
                stacks.add(stack)
                modules.add(module)
        return places

    @cached_property
    def _is_backward(self) -> bool:
        return _BACKWARD.search(self._text) is not None


def _listed(names: str | None) -> tuple[str, ...]:
    return tuple(names.split(", ")) if names else ()


def _nearest(
    nodes: Iterable[_Lowered], following: Callable[[_Lowered], Iterable[str]]
) -> dict[str, _Near]:
    """For each node, the nearest node with a line that ``following`` leads to. ``nodes`` are in an
    order in which each comes after those that follow it."""
    nearest: dict[str, _Near] = {}
    for node in nodes:
        near = (nearest[name] for name in following(node) if name in nearest)
        if node.frame is not None:
            nearest[node.name] = 0, node
        elif (first := min(near, key=itemgetter(0), default=None)) is not None:
            nearest[node.name] = first[0] + 1, first[1]
    return nearest


@cache
def _frames(stack: str) -> Frames:
    """The user's frames of a stack of Dynamo's, innermost first."""
    places = _FRAME.findall(stack)[::-1]
    return _of_user(Frame(file, int(line), name) for file, line, name in places)


def _of_user(frames: Iterable[Frame]) -> Frames:
    return tuple(
        replace(frame, file=named_by_cell(frame.file))
        for frame in frames
        if not is_internal_file(frame.file)
    )


@cache
def _path(module: tuple[str, str] | None) -> tuple[str, str] | None:
    """The module's path without Dynamo's root: ``layers.0`` for ``L['self'].layers.0``."""
    if module is None:
        return None
    path, kind = module
    return _ITEM.sub(r".\1", _ROOT.sub("", path)).lstrip("."), kind
