"""Where values of the host go: into ops, into branches, into state that outlives the call.

The facts, which ``observe.flow_reader`` reads from the source of the functions that ran, and what
follows from them. Runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from cgtool.observe.frames import is_internal, package_part
from cgtool.observe.host_reads import Change, HostReads
from cgtool.observe.lookup import resolve, undecorated
from cgtool.observe.source import Position, function_of, inner_nodes
from cgtool.observe.tensors import on_host
from cgtool.observe.uses import RETURN_NOTHING, name_chain

_HELPERS = 3
"""How deep calls are followed into helpers that did not run."""
_CHANGES_TENSORS = frozenset(("backward", "step", "zero_grad", "load_state_dict"))


@dataclass(frozen=True)
class Source:
    """What a value depends on."""

    kind: str
    """``parameter`` of the function that is read, ``device`` (a tensor that a parameter is or
    holds), ``beside`` (a number in one object with other things), ``state`` that outlives a call,
    ``whole`` (the state that another is reached through, if it is replaced), ``kept`` (state that a
    comparison with the last call reads: what decides whether and how it is set), ``item`` (of a
    container among the states: those of one key, of one key in these, or their size), ``decision``
    (the side that a branch takes), or what a call returns: ``random``, ``clock``, ``file``,
    ``copied`` (from the device to the host), ``read`` (the same, where the host waits), ..."""
    key: Any
    """Name of the parameter; key of the state; position of the test or of the call; the source that
    ``beside`` or ``device`` is about."""


Sources = frozenset[Source]
NOTHING: Sources = frozenset()


def beside(sources: Sources) -> Sources:
    """The sources of a number that was put into one object with other things (``loss, step``)."""
    return frozenset(each if each.kind == "beside" else Source("beside", each) for each in sources)


def everything_in(sources: Sources) -> Sources:
    """The sources of an object with those of the numbers in it."""
    return frozenset(each.key if each.kind == "beside" else each for each in sources)


def of_tensor(sources: Sources) -> Sources:
    """The sources of a tensor on the device that was taken out of an object with these: it does not
    depend on numbers beside it."""
    return frozenset(
        Source("device", each) if each.kind == "parameter" else each
        for each in sources
        if each.kind != "beside"
    )


def without_steps(sources: Iterable[Source], steady: Set[Any]) -> Sources:
    """The sources of whether a value changes, for counters among them (by key) that change in every
    call: what decides whether they do."""
    return frozenset(
        Source("kept", each.key) if each.kind == "state" and each.key in steady else each
        for each in sources
    )


Fact = tuple[str, Any]
"""Where values go: ``op`` at a position, ``decision`` at a position, ``state`` by its key,
``setting`` of a PyTorch object at a position, ``return`` of a code object by its id, ``output`` of
the outermost function or block."""


@dataclass
class Ran:
    """What an iteration ran, by the position of the expression in the user's code."""

    codes: dict[int, CodeType] = field(default_factory=dict)
    """The user's functions, by id."""
    called: dict[Position, dict[int, bool]] = field(default_factory=dict)
    """The user's functions that an expression called, by id; True if its arguments are theirs."""
    handed: dict[Position, set[int]] = field(default_factory=dict)
    """The user's functions that other threads ran for an expression (``pool.submit(f)``,
    ``thread.start()``), by id."""
    serving: set[int] = field(default_factory=set)
    """Functions of other threads that run for what the code gives them, by id."""
    contents: dict[int, dict[str, dict[int, Any]]] = field(default_factory=dict)
    """By id of a function: the containers that its local names held when it returned, by id. Known
    once work was handed to another thread, which may share them."""
    seeds: set[Position] = field(default_factory=set)
    """Calls that give a generator of random numbers a seed, or a state."""
    drawn: dict[Position, str] = field(default_factory=dict)
    """Calls whose result is never the same: their kind."""
    settled: set[Position] = field(default_factory=set)
    """Calls that draw one of one item (``random.choice`` from a list of one)."""
    ops: set[Position] = field(default_factory=set)
    """Expressions that ran ops on the device themselves."""
    shapes: set[Position] = field(default_factory=set)
    """Those of them whose ops take only the shapes of tensors."""
    reads: set[Position] = field(default_factory=set)
    """Expressions that brought values of the device to the host, and waited for them."""
    around: set[Position] = field(default_factory=set)
    """Expressions in which such ops ran, those of called functions included."""
    tensors: dict[int, set[str]] = field(default_factory=dict)
    """By id of a function: its local names that held tensors on the device when it returned, also
    in attributes and items (``out.loss``, ``out['loss']``)."""
    numbers: dict[int, set[str]] = field(default_factory=dict)
    """By id of a function: its local names that held numbers or texts then."""
    returned: dict[int, set[str]] = field(default_factory=dict)
    """By id of a function: the parts of what it returned each time that are tensors on the device,
    as they are written behind a call of it: ``[0]``, ``.loss``."""
    replacing: dict[int, CodeType] = field(default_factory=dict)
    """By id, functions that PyTorch called (hooks), and that returned other tensors than they were
    given, or wrote into those."""
    changing: set[tuple[str, int]] = field(default_factory=set)
    """The files and lines where methods in C changed containers."""
    answering: set[int] = field(default_factory=set)
    """Ids of functions that PyTorch called for what they return: hooks, and functions of autograd,
    but not `forward` of a module, whose caller gets the result."""
    hidden: set[int] = field(default_factory=set)
    """Ids of functions that ran inside an op, so that the ops that they called were not seen."""
    blocks: dict[int, ast.With] = field(default_factory=dict)
    """By id of a function: the only part of it that ran."""
    outputs: dict[int, tuple[bool, ...] | None] = field(default_factory=dict)
    """By id of the outermost functions: whether each value that it returned holds tensors."""


@dataclass
class Branch:
    """A condition, what a loop iterates over, or the function that is called."""

    code: CodeType
    line: int
    spans: list[Position] = field(default_factory=list)
    """Code that runs or does not run, depending on it."""
    effects: bool = False
    """Whether code in the spans, even if it did not run, changes tensors."""
    selects: bool = False
    """Whether code in the spans, even if it did not run, computes from tensors or returns them."""
    reads: bool = False
    """The same for tensors that no local name holds."""
    loops: bool = False
    """Whether it is what a loop iterates over."""
    calls: bool = False
    """Whether it is the function that a call calls."""


class Flows:
    """The facts about all functions that ran."""

    def __init__(self, ran: Ran, reads: HostReads) -> None:
        self.ran, self.reads = ran, reads
        self.facts: dict[Fact, set[Source]] = {}
        self.branches: dict[Position, Branch] = {}
        self.summaries: dict[int, dict[Fact, set[Source]]] = {number: {} for number in ran.codes}
        """For each function: the facts that depend on its parameters, and its ``return``."""
        self.changed = True
        """Whether a fact was added."""
        self.lasts: dict[tuple[Position, Position], frozenset[Any]] = {}
        """By the sides of a comparison: the keys of a place that keeps the last value of the other
        side."""
        self.steady: set[Any] = set()
        """The keys of counters that rise in every call, as far as nothing decides whether they
        do."""
        self.raised: dict[int, dict[str, Sources]] = {}
        """By id of the code: what decides whether a function raises, by name of the exception."""
        self._changing: dict[tuple[int, int], bool] = {}
        """By id of a function, and how deep its calls are followed: whether it changes tensors."""
        self.parents = {
            id(inner): outer
            for outer in ran.codes.values()
            for inner in outer.co_consts
            if isinstance(inner, CodeType)
        }

    def add(self, code: CodeType, fact: Fact, sources: Iterable[Source]) -> None:
        """Record that the value of a fact depends on the sources, in a function."""
        for source in sources:
            own = source.kind in ("parameter", "device") or fact[0] == "return"
            table = self.summaries[id(code)] if own else self.facts
            known = table.setdefault(fact, set())
            if source not in known:
                known.add(source)
                self.changed = True

    def add_raised(self, code: CodeType, names: Iterable[str], decision: Set[Source]) -> None:
        """Record that a function may raise exceptions that it does not handle, by name."""
        for name in names if decision else ():
            known = self.raised.setdefault(id(code), {}).setdefault(name, frozenset())
            self.changed |= not decision <= known
            self.raised[id(code)][name] = known | decision

    def volatile(
        self, first: Iterable[Source], spared: Callable[[Source, str], bool]
    ) -> dict[Source, Source]:
        """All sources that change if those in ``first`` do, each with the first one behind it: of
        several, the one that is named first. ``spared`` says of which states an item is known to
        be as it was."""
        rank = {source: number for number, source in enumerate(first)}
        causes = {source: source for source in rank}
        results = [
            (Source("state" if fact[0] == "items" else fact[0], fact[1]), sources)
            for fact, sources in self.facts.items()
            if fact[0] in ("state", "items", "decision")
        ]
        results += [
            (Source("kept", result.key), {*without_steps(sources - {result}, self.steady)})
            for result, sources in results
            if result.kind == "state"
        ]
        items = {
            item: set(self._named(item))
            for item in {each for found in self.facts.values() for each in found}
            if item.kind == "item"
        }
        results += [
            # What is put back where it was is not replaced (`state = table.get(key)`, and later
            # `table[key] = state`).
            (
                Source("whole", result.key),
                {each for each in sources if result not in items.get(each, ())},
            )
            for result, sources in (
                (Source(*fact), sources) for fact, sources in self.facts.items()
            )
            if result.kind == "state"
        ]
        for item, named in items.items():
            state, path = item.key
            kind = "whole" if spared(state, path[-1]) else "state"
            results.append((item, {Source(kind, state.key), *named}))
        growing = True
        while growing:
            growing = False
            for result, sources in results:
                behind = [causes[source] for source in sources if source in causes]
                if behind and result not in causes:
                    causes[result] = min(behind, key=rank.__getitem__)
                    growing = True
        return causes

    def behind(self, results: Iterable[Source], *, decisions: bool = True) -> set[Source]:
        """These sources, and all that they depend on; without ``decisions``, not what has decided
        that they get these values."""
        known: set[Source] = set()
        waiting = set(results)
        while waiting:
            source = waiting.pop()
            if source in known or (source.kind == "decision" and not decisions):
                continue
            known.add(source)
            if source.kind == "item":
                waiting |= {source.key[0], *self._named(source)}
            elif source.kind == "kept":
                waiting.add(Source("state", source.key))
            else:
                kind = "state" if source.kind == "whole" else source.kind
                waiting |= self.sources_of(kind, source.key)
        return known

    def sources_of(self, kind: str, key: Any) -> set[Source]:
        """What a fact depends on; of a state, what its items depend on too."""
        sources = self.facts.get((kind, key), set())
        return sources | self.facts.get(("items", key), set()) if kind == "state" else sources

    def carries(self, change: Change) -> bool:
        """Whether the new value of a place is computed from the one before."""
        place = Source("state", change.watched.key)
        behind = self.behind(self.sources_of("state", place.key), decisions=False)
        return not behind.isdisjoint((place, Source("whole", place.key)))

    def _named(self, item: Source) -> Iterator[Source]:
        """The names that code elsewhere has for an item: it may write one that is read through
        another name of the container."""
        state, path = item.key
        values = [each.look_up() for each in self.reads.watched if each.key == state.key]
        for depth, key in enumerate(path, 1):
            # The next key looks into this item.
            meant = "state" if depth == len(path) else "whole"
            for value in values:
                yield from (Source(meant, (kind, id(value), key)) for kind in ("item", "each"))
            values = [resolve(value, (("item", key),)) for value in values]

    def change_tensors(
        self, code: CodeType, statements: Iterable[ast.AST], depth: int = _HELPERS
    ) -> bool:
        """Whether statements of a function, which may not have run, change tensors in place, or
        read them on the host."""
        for statement in statements:
            for node in (statement, *inner_nodes(statement)):
                targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
                if any(self._is_written(code, node, target) for target in targets):
                    return True
                if isinstance(node, ast.Call) and (
                    self._writes_argument(code, node) or self._registers_hook(code, node, depth)
                ):
                    return True
                if any(self._is_device_result(code, read) for read in _read(node)):
                    return True
                call = node.value if isinstance(node, ast.Expr) else None
                if isinstance(call, ast.Call) and self._call_changes(code, call.func, depth):
                    return True
        return False

    def _is_written(self, code: CodeType, node: ast.AST, target: ast.expr | None) -> bool:
        """Whether an assignment writes to a tensor: `x[0] = 1`, `x += 1`, `x.data = y`."""
        written = target.value if isinstance(target, ast.Subscript) else target
        if isinstance(written, ast.Attribute) and written.attr == "data":
            return True
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            return self.is_on_device(code, target.value)
        is_in_place = written is not target or isinstance(node, ast.AugAssign)
        return is_in_place and self.is_on_device(code, written)

    def _writes_argument(self, code: CodeType, call: ast.Call) -> bool:
        """Whether a call writes to what it is given: `out=x`, `inplace=True`, `y = x.add_(1)`, a
        collective."""
        for word in call.keywords:
            is_true = isinstance(word.value, ast.Constant) and word.value.value is True
            if (word.arg == "inplace" and is_true) or (
                word.arg == "out" and self.is_on_device(code, word.value)
            ):
                return True
        function = call.func
        if isinstance(function, ast.Attribute) and is_in_place(function.attr):
            return self.is_on_device(code, function.value)
        return any(self.is_on_device(code, argument) for argument in call.args) and any(
            str(getattr(value, "__module__", None)).startswith("torch.distributed")
            for value in self._values(code, function)
        )

    def _registers_hook(self, code: CodeType, call: ast.Call, depth: int) -> bool:
        """Whether a call gives a module or a tensor a hook that returns something, or changes
        tensors."""
        name = getattr(call.func, "attr", "")
        if not (name.startswith("register_") and name.endswith("hook") and call.args and depth):
            return False
        hook = call.args[0]
        helpers = [
            helper.__code__
            for value in self._values(code, hook)
            if (helper := undecorated(value)) is not None
        ]
        inner = [
            each
            for each in code.co_consts
            if isinstance(each, CodeType) and isinstance(hook, ast.Name) and each.co_name == hook.id
        ]
        if isinstance(hook, ast.Lambda):
            return not _is_nothing(hook.body)
        return any(self._matters(each, depth) for each in (*helpers, *inner))

    def _matters(self, hook: CodeType, depth: int) -> bool:
        """Whether a hook returns something, or changes tensors."""
        return _answers(hook) or self._changes(hook, depth - 1)

    def _ends_hook(self, handle: Any, depth: int) -> bool:
        """Whether this is the handle of a hook that matters."""
        if depth <= 0 or not isinstance(handle, RemovableHandle):
            return False  # a hook may remove itself
        hooks: Mapping[int, Any] = handle.hooks_dict_ref() or {}
        hook = hooks.get(handle.id)
        # An object may be one, too.
        helper = undecorated(hook) or undecorated(vars(type(hook)).get("__call__"))
        return helper is None or self._matters(helper.__code__, depth)

    def _is_device_result(self, code: CodeType, node: ast.expr | None) -> bool:
        """Whether an expression, which may not have run, is a tensor on the device: one by name, or
        what an operator, a method or a function of PyTorch makes of one."""

        def any_of(*nodes: ast.expr) -> bool:
            return any(self._is_device_result(code, each) for each in nodes)

        match node:
            case ast.Call(ast.Attribute(_, name)) if _is_of_the_host(name):
                return False
            case ast.Call(ast.Attribute(owner), arguments):
                is_torch = any(
                    isinstance(each, ModuleType) and each.__name__.partition(".")[0] == "torch"
                    for each in self._values(code, owner)
                )
                return any_of(*arguments) if is_torch else any_of(owner)
            case ast.Compare(left, operators, others):
                return not isinstance(operators[0], _OF_OBJECTS) and any_of(left, *others)
            case ast.BinOp(left, _, right):
                return any_of(left, right)
            case ast.UnaryOp(_, value) | ast.Subscript(value):
                return any_of(value)
            case ast.BoolOp(_, values):
                return any_of(*values)
        return self.is_on_device(code, node)

    def _call_changes(self, code: CodeType, function: ast.expr, depth: int) -> bool:
        """Whether a call whose result is not used changes tensors."""
        if isinstance(function, ast.Attribute):
            name, owners = function.attr, self._values(code, function.value)
            if name in _CHANGES_TENSORS:
                return True
            if name == "remove" and any(self._ends_hook(owner, depth) for owner in owners):
                return True
            if name in ("eval", "train") and any(
                module.training is (name == "eval")
                for owner in owners
                if isinstance(owner, torch.nn.Module)
                for module in owner.modules()
            ):
                return True
            if is_in_place(name):
                return not any(isinstance(each, torch.Tensor) and on_host(each) for each in owners)
        for value in self._values(code, function) if depth else ():
            if isinstance(value, torch.nn.Module):
                return True
            helper = undecorated(value)
            if helper is None:
                continue
            inner = helper.__code__
            if is_internal(inner) and not package_part(inner.co_filename).startswith("/torch/"):
                continue
            if self._changes(inner, depth - 1):
                return True
        return False

    def _changes(self, code: CodeType, depth: int) -> bool:
        """Whether a function, which may not have run, changes tensors in place."""
        known = self._changing.get((id(code), depth))
        if known is None:
            body = getattr(function_of(code), "body", [])
            statements = body if isinstance(body, list) else [ast.Expr(body)]
            known = self.change_tensors(code, statements, depth)
            self._changing[id(code), depth] = known
        return known

    def is_on_device(self, code: CodeType, node: ast.expr | None) -> bool:
        if isinstance(node, ast.Name) and node.id in self.ran.tensors.get(id(code), ()):
            return True
        values = self._values(code, node)
        return any(isinstance(value, torch.Tensor) and not on_host(value) for value in values)

    def _values(self, code: CodeType, node: ast.expr | None) -> list[Any]:
        chain = name_chain(node) if node is not None else None
        return self.reads.values_of(code, *chain) if chain else []

    def cell(self, code: CodeType, name: str) -> tuple[Any, ...]:
        """Key of a variable that a function shares with the functions inside it."""
        parent: CodeType | None = code
        while parent is not None and name not in parent.co_cellvars:
            parent = self.parents.get(id(parent))
        return () if parent is None else (("cell", id(parent), name),)


def _answers(code: CodeType) -> bool:
    """Whether a function returns something."""
    function = function_of(code)
    if isinstance(function, ast.Lambda):
        return not _is_nothing(function.body)
    return any(
        isinstance(node, ast.Return) and not _is_nothing(node.value)
        for node in (() if function is None else inner_nodes(function))
    )


def _is_nothing(node: ast.expr | None) -> bool:
    """Whether an expression that is returned is None."""
    match node:
        case None | ast.Constant(None) | ast.Call(ast.Name("print" | "setattr")):
            return True
        case ast.Call(ast.Attribute(_, name)):
            return name in RETURN_NOTHING
    return False


_OF_OBJECTS = ast.Is, ast.IsNot, ast.In, ast.NotIn


def _is_of_the_host(name: str) -> bool:
    """Whether a method of a tensor, or a function of PyTorch, says something that is known without
    the tensor's values."""
    return name.startswith(("is_", "get_")) or name in (
        "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size",
        "storage_offset", "data_ptr", "type", "result_type", "can_cast",
    )  # fmt: skip


def _read(node: ast.AST) -> list[ast.expr]:
    """The expressions that a piece of code brings to the host, if they are tensors on the device: a
    capture of a call that reaches it fails, and no replay does it."""
    match node:
        case ast.Call(ast.Attribute(owner, "item" | "tolist" | "cpu" | "numpy")):
            return [owner]
        case ast.Call(ast.Name("float" | "int" | "bool" | "complex" | "str" | "repr"), [argument]):
            return [argument]
        case ast.Call(ast.Name("print"), arguments):
            return arguments
        case ast.FormattedValue(value):
            return [value]
        case ast.If(test) | ast.While(test) | ast.IfExp(test) | ast.Assert(test):
            return [test]
    return []


def is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def contains(outer: Position, inner: Position) -> bool:
    """Whether one piece of a file lies in another."""
    return (
        outer[0] == inner[0]
        and (outer[1], outer[2]) <= (inner[1], inner[2])
        and (inner[3], inner[4]) <= (outer[3], outer[4])
    )
