"""Reads where values of the host go from the source of the functions that ran.

Each function is read once for all calls of it, statement by statement. Every local name carries the
set of sources that its value may depend on. What ran says which expressions launched ops and which
called the user's functions; a function's effects depend on its parameters and are applied at each
call of it. Runs nothing.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping
from functools import partial
from types import CodeType
from typing import Any

from cgtool.observe.flow_calls import items_written
from cgtool.observe.flow_expressions import Expressions
from cgtool.observe.flow_names import span_of
from cgtool.observe.flows import NOTHING, Flows, Ran, Sources
from cgtool.observe.host_reads import HostReads
from cgtool.observe.source import function_of, inner_nodes
from cgtool.observe.uses import assigned_parts

_MODES = frozenset(("autocast", "set_grad_enabled", "inference_mode", "no_grad", "enable_grad"))


def _is_mode(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return (getattr(function, "attr", None) or getattr(function, "id", "")) in _MODES


def read_flows(ran: Ran, reads: HostReads) -> Flows:
    """The facts about all functions that ran."""
    flows = Flows(ran, reads)
    nodes: list[tuple[CodeType, ast.AST | None]] = [
        (code, ran.blocks.get(number) or function_of(code)) for number, code in ran.codes.items()
    ]
    while flows.changed:
        flows.changed = False
        for code, node in nodes:
            if node is not None:
                _Reader(flows, code, node).read()
    return flows


def _calls(target: ast.expr, statement: ast.AST) -> bool:
    """Whether a statement calls what a name holds, and does not use the result."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    return (
        isinstance(function, ast.Name) and isinstance(target, ast.Name) and function.id == target.id
    )


_ANY = frozenset(("", "Exception", "BaseException"))


def _exception(node: ast.expr | None) -> str:
    """The name of the class of an exception: ``Stop`` of ``errors.Stop("done")``; "" for none."""
    called = node.func if isinstance(node, ast.Call) else node
    return str(getattr(called, "attr", None) or getattr(called, "id", ""))


def _raised(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of exceptions that statements raise, again apart."""
    return {
        name for node in nodes if isinstance(node, ast.Raise) and (name := _exception(node.exc))
    }


def _catches(tried: ast.Try | ast.TryStar, name: str) -> bool:
    """Whether a ``try`` handles an exception that is raised in its body: by the same name or that
    of a base class of Python's, or any one, unless its handler raises too."""
    for handler in tried.handlers:
        caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = {*map(_exception, caught)}
        if name in names or not names.isdisjoint(_ANY | _bases(name)):
            return not any(isinstance(node, ast.Raise) for node in inner_nodes(handler))
    return False


def _bases(name: str) -> set[str]:
    kind = getattr(builtins, name, None)
    return {each.__name__ for each in kind.__mro__} if isinstance(kind, type) else set()


def _joined(*names: Mapping[str, Sources]) -> dict[str, Sources]:
    """What local names may hold after one of several ways."""
    known = {name for each in names for name in each}
    return {name: NOTHING.union(*(each.get(name, NOTHING) for each in names)) for name in known}


class _Reader(Expressions):
    """Reads the statements of one function."""

    def read(self) -> None:
        if isinstance(self.node, ast.Lambda):
            self._return(self.node.body)
        else:
            self._block(self.node.body)  # type: ignore[attr-defined]

    def _block(self, statements: Iterable[ast.AST]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.AST) -> None:
        outer, self.implicit = self.implicit, self.results(node, NOTHING)
        method = getattr(self, f"_do_{type(node).__name__}", None)
        if method is not None:
            method(node)
        elif isinstance(node, ast.stmt) and not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            self.children(node)
        self.implicit = outer

    def _do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        for target in node.targets:
            pairs = assigned_parts(target, node.value)
            values = [(part, self.evaluate(value)) for part, value in pairs]
            for part, sources in values:
                self.bind(part, sources)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        items = items_written(node.value) if isinstance(node.op, ast.BitOr) else None
        if items is not None:
            self.update(node.target, items)
            return
        sources = self.evaluate(node.target) | self.evaluate(node.value)
        self.augmented = node.target
        self.bind(node.target, self.consume(node, sources))

    def _do_Return(self, node: ast.Return) -> None:  # noqa: N802
        self._return(node.value)

    def _return(self, value: ast.expr | None) -> None:
        if value is None:
            self.add("return", id(self.code), self.control)
            return
        sources = self.evaluate(value)
        self.add("return", id(self.code), sources | self.control)
        if id(self.code) in self.ran.answering and self.reads_tensors(value):
            self.add("output", id(self.code), sources | self.control)
        with_tensors = self.ran.outputs.get(id(self.code))
        if with_tensors is None:
            return
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(parts) == len(with_tensors):
            for part, has_tensors in zip(parts, with_tensors, strict=True):
                if has_tensors:
                    self.add("output", id(self.code), self.evaluate(part) | self.control)

    def _do_If(self, node: ast.If) -> None:  # noqa: N802
        guarded: list[ast.AST] = [*node.body, *node.orelse]
        decision = self.decide(node.test, guarded)
        before, names = self.control, self.names
        ends = []
        self.control = before | decision
        for body in (node.body, node.orelse):
            self.names = dict(names)
            self._block(body)
            ends.append(self.names)
        self.names, self.control = _joined(*ends), before
        self._leave_early(guarded, decision)

    def _leave_early(self, guarded: list[ast.AST], decision: Sources) -> None:
        """What follows a branch with a `return`, `break` or `continue` depends on it, and so does
        what follows a `raise` in the `try` that catches it."""
        inside = [node for part in guarded for node in (part, *inner_nodes(part))]
        names = _raised(inside)
        catching = next(
            (each for each in reversed(self.tries) if any(_catches(each, name) for name in names)),
            None,
        )
        span: ast.AST | None = None
        if any(isinstance(node, ast.Return) for node in inside):
            span = self.node
        elif catching is not None:
            span = self._left(catching)
        elif self.loops and any(isinstance(node, ast.Break | ast.Continue) for node in inside):
            span = self.loops[-1]
        if names and catching is None:
            self.flows.add_raised(self.code, names, decision)
        if span is None or not decision:
            return
        self._leave(span, guarded, decision)

    def left_by(self, call: ast.Call, raised: Mapping[str, Sources]) -> None:
        """A function that is called may raise these, depending on this."""
        for name, decision in raised.items():
            tried = next((each for each in reversed(self.tries) if _catches(each, name)), None)
            if tried is None:
                self.flows.add_raised(self.code, (name,), decision)
            else:
                self._leave(self._left(tried), [call], decision)

    def _left(self, tried: ast.Try | ast.TryStar) -> ast.AST:
        """What an exception leaves: the ``try`` that handles it, or the function."""
        handled = (node for handler in tried.handlers for node in inner_nodes(handler))
        return self.node if any(isinstance(node, ast.Return) for node in handled) else tried

    def _leave(self, span: ast.AST, guarded: list[ast.AST], decision: Sources) -> None:
        """What follows these nodes in ``span`` depends on a decision."""
        self.control |= decision
        last = max(getattr(part, "end_lineno", 0) for part in guarded)
        end = span_of(self.code, span)
        always = getattr(span, "finalbody", [])
        if always:
            end = (*end[:3], always[0].lineno, 0)
        for source in decision:
            branch = self.flows.branches[source.key]
            # That of another function stands where this one calls it.
            first = source.key if branch.code is self.code else span_of(self.code, guarded[0])
            start = end[1:3] if span in self.loops else first[1:3]
            place = (end[0], *start, *end[3:])
            if place in branch.spans:
                continue
            branch.spans.append(place)
            skipped = [
                node
                for node in inner_nodes(span)
                if isinstance(node, ast.stmt)
                and (span in self.loops or node.lineno > last)
                and not (always and node.lineno >= always[0].lineno)
            ]
            branch.effects |= self.flows.change_tensors(self.code, skipped)
            branch.selects |= any(map(self.uses_tensors, skipped))
            branch.reads |= any(map(self.reads_tensors, skipped))

    def _do_Assert(self, node: ast.Assert) -> None:  # noqa: N802
        """In a ``try`` that handles it, it decides what runs."""
        if not any(_catches(each, "AssertionError") for each in self.tries):
            self.children(node)
            return
        stopped = ast.copy_location(ast.Raise(ast.Name("AssertionError", ast.Load())), node)
        self._leave_early([stopped], self.decide(node.test, [stopped]))

    def _loop(self, node: Any, decision: Sources, target: Sources | None) -> None:
        before = self.control
        self.loops.append(node)
        for _ in range(2):
            names = dict(self.names)
            self.control = before | decision
            if target is not None:
                self.bind_item(node, target)
            self._block(node.body)
            for name, sources in names.items():
                self.names[name] = self.names.get(name, NOTHING) | sources
        self.loops.pop()
        # A `return` in the loop decides what follows, a `break` does not.
        returns = any(isinstance(inner, ast.Return) for inner in inner_nodes(node))
        self.control = self.control if returns else before
        self._block(node.orelse)

    def _do_For(self, node: ast.For | ast.AsyncFor) -> None:  # noqa: N802
        values = self.evaluate(node.iter) | self.implicit
        decision = self.decide(node.iter, list(node.body), loops=True)
        for source in decision:
            # What it calls is not known if none of it ran.
            branch = self.flows.branches[source.key]
            branch.effects |= any(map(partial(_calls, node.target), node.body))
        self._loop(node, decision, values)

    _do_AsyncFor = _do_For  # noqa: N815

    def _do_While(self, node: ast.While) -> None:  # noqa: N802
        self._loop(node, self.decide(node.test, list(node.body)), None)
        self.evaluate(node.test)

    def _do_With(self, node: ast.With | ast.AsyncWith) -> None:  # noqa: N802
        for item in node.items:
            sources = self.evaluate(item.context_expr) | self.implicit
            # One of several may be chosen: `autocast(...) if self.half else nullcontext()`.
            if any(map(_is_mode, ast.walk(item.context_expr))):
                self.branch(item.context_expr, list(node.body), sources)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, sources)
        self._block(node.body)

    _do_AsyncWith = _do_With  # noqa: N815

    def _do_Try(self, node: Any) -> None:  # noqa: N802
        control, before = self.control, dict(self.names)
        self.tries.append(node)
        self._block(node.body)
        self.tries.pop()
        # The body may be left at any of its lines.
        broken = _joined(before, self.names)
        self._block(node.orelse)
        ends = [self.names]
        for handler in node.handlers:
            self.names = dict(broken)
            self._block(handler.body)
            ends.append(self.names)
        self.names = _joined(*ends)
        returns = any(isinstance(each, ast.Return) for each in inner_nodes(node))
        self.control = self.control if returns else control
        self._block(node.finalbody)

    _do_TryStar = _do_Try  # noqa: N815

    def _do_Match(self, node: ast.Match) -> None:  # noqa: N802
        guarded = [statement for case in node.cases for statement in case.body]
        decision = self.decide(node.subject, guarded)
        before = self.control
        self.control = before | decision
        for case in node.cases:
            self._block(case.body)
        self.control = before
        self._leave_early(list(guarded), decision)

    def _do_Delete(self, node: ast.Delete) -> None:  # noqa: N802
        """Whoever reads it next finds nothing there, or computes it anew."""
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self.bind(target, NOTHING)

    def _Yield(self, node: ast.Yield | ast.YieldFrom) -> Sources:  # noqa: N802
        self._return(node.value)
        return NOTHING

    _YieldFrom = _Yield
