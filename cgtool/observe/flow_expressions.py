"""Where the values of expressions come from, and what calls and branches lead to."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from cgtool.observe.effects import overwrites
from cgtool.observe.flow_calls import (
    ADDS,
    ALL,
    ASK_KINDS,
    KINDS,
    MAKE_OBJECTS,
    MAY_COPY,
    OF_ANY_KEY,
    RESUMING,
    SET_MODES,
    SETTINGS,
    SIZES,
    SUSPENDED,
    given_by,
    in_order,
    is_special,
    items_updated,
    key_of_steps,
    named_part,
    of_items,
    of_no_element,
    passed_to,
)
from cgtool.observe.flow_names import Names, parameters_of, span_of
from cgtool.observe.flows import (
    NOTHING,
    Branch,
    Source,
    Sources,
    beside,
    everything_in,
    of_tensor,
    without_steps,
)
from cgtool.observe.host_values import CONTAINERS, ITSELF, ORDER, PRESENCE, SIZE
from cgtool.observe.lookup import is_immutable
from cgtool.observe.source import Position
from cgtool.observe.uses import (
    CHANGE_FIRST,
    CHANGES,
    ONE,
    Step,
    assigned_parts,
    keys_of_loop,
    name_chain,
    popped_by,
    set_by,
    with_items,
)


class Expressions(Names):
    """The sources of expressions, and the facts that they add to the flows."""

    def add(self, kind: str, key: Any, sources: Sources) -> None:
        if kind != "return":
            sources = everything_in(sources)
        if kind in ("state", "items"):
            # An object that is replaced as a whole gets its own fields back.
            sources = frozenset(
                each
                for each in sources
                if each.kind != "state" or each.key == key or each.key[: len(key)] != key
            )
        self.flows.add(self.code, (kind, key), sources)

    def _load(self, node: ast.expr, chain: tuple[str, tuple[Step, ...]]) -> Sources:
        root, steps = chain
        part = named_part(chain)
        if part is None:
            sources = NOTHING.union(*(self.names[name] for name in self.parts_of(root)))
        else:
            sources = self.names.get(part, NOTHING)
            if not self.keys(root, steps):
                sources |= of_items(self.names.get(root, NOTHING), str(steps[0][1]))
        key = key_of_steps(steps)
        sources |= {
            Source("state", ("contents", number, part))
            for number in self.shared(root)
            for part in ((ALL,) if key is None else (key, OF_ANY_KEY))
        }
        for key in self.keys(root, steps):
            sources |= {Source("state", key)}
            if key[0] in ("item", "each"):
                sources |= {Source("state", ("contents", key[1]))}
        if steps:
            whole = {*self.flows.cell(self.code, root)}
            whole.update(*(each.prefixes for each in self.watched(*chain)))
            sources |= {Source("whole", key) for key in whole if key is not None}
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            sources |= self.results(inner, sources)
            inner = inner.value
        # A name that is tested or looped over calls `__bool__` or `__iter__`.
        sources |= self.results(inner, sources)
        return self.consume(node, of_tensor(sources) if self.is_device(chain) else sources)

    def _sources_of_object(
        self, parts: Iterable[tuple[ast.expr, Sources]], owner: ast.AST | None
    ) -> Sources:
        """The sources of an object that is made of expressions with these, and of ``owner``."""
        parts = list(parts)
        nodes = [node for node, _ in parts]
        if isinstance(owner, ast.expr):
            nodes.append(owner)
        if any(map(self.may_hold_tensors, nodes)):
            parts = [(x, beside(held) if self.is_number(x) else held) for x, held in parts]
        return NOTHING.union(*(held for _, held in parts))

    def bind_item(self, loop: ast.For | ast.AsyncFor | ast.comprehension, sources: Sources) -> None:
        """Bind what a loop takes out of a container. Which tensor that is does not depend on what
        changes in the other items, nor does the key of an item."""
        self.bind(loop.target, sources)
        for node in ast.walk(loop.target):
            if isinstance(node, ast.Name) and node.id in self.ran.tensors.get(id(self.code), ()):
                self.names[node.id] = in_order(self.names.get(node.id, NOTHING))
        for name, kept in keys_of_loop(loop.target, loop.iter).items():
            if self.is_dict(kept):
                self.keys_of_loops[name] = kept
                self.names[name] = in_order(self.names.get(name, NOTHING))
        if isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Tuple | ast.List):
            self.items_of_loops[loop.target.id] = loop.iter.elts

    def bind(self, target: ast.AST, sources: Sources) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            sources |= self.results(target, sources)
            for item in target.elts:
                self.bind(item, sources)
            return
        if isinstance(target, ast.Starred):
            self.bind(target.value, sources)
            return
        if not isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
            return
        sources |= self.control
        if not isinstance(target, ast.Name):
            position = span_of(self.code, target)
            key = target.slice if isinstance(target, ast.Subscript) else None
            if key is not None:
                sources |= self.evaluate(key)
            if position in self.ran.ops:
                self.add("op", position, sources)
                sources = self.control
            if isinstance(key, ast.Constant) and key.value in SETTINGS:
                self.add("setting", position, sources)
            elif getattr(target, "attr", "") == "requires_grad":
                self.add("mode", position, sources)
            self._set_by_functions(position, sources)
        self._store(target, sources)

    def _set_by_functions(self, position: Position, sources: Sources) -> None:
        """An assignment calls functions: the setter of a property, ``__setitem__``."""
        for number in self.ran.called.get(position, ()):
            owner, *others = parameters_of(self.ran.codes[number]) or ("",)
            self._apply(number, {owner: NOTHING, **dict.fromkeys(others, sources)})

    def _store(
        self,
        target: ast.expr,
        sources: Sources,
        *,
        in_place: bool = False,
        keeps_keys: bool = False,
    ) -> None:
        """Values with these sources become part of what an expression names. ``keeps_keys``: an
        item of it gets another value, and none is added."""
        if id(self.code) in self.ran.blocks:
            # It may be read after the replay.
            self.add("output", id(self.code), sources)
        chain = name_chain(target)
        root, steps = chain or ("", ())
        # With a key that is not known, it is a part of the container; behind one (`rows[i]["n"]`),
        # only of what has that name in its items.
        is_in_some_item = ONE in steps[:-1] and bool(self.keys(root, steps, in_place=in_place))
        is_some_item = chain is None or (ONE in steps and not is_in_some_item)
        if is_some_item and isinstance(target, ast.Attribute | ast.Subscript):
            has_key = isinstance(target, ast.Subscript) and self.has_key(target)
            self._store(target.value, sources, in_place=True, keeps_keys=has_key)
        if chain is None:
            return
        for key in self.keys(root, steps, in_place=in_place):
            self.add("items" if keeps_keys else "state", key, sources)
            if key[0] == "module":
                self.add("setting", span_of(self.code, target), sources)
        for number in self.shared(root) if steps or in_place else ():
            for part in (key_of_steps(steps) or OF_ANY_KEY, ALL):
                self.add("state", ("contents", number, part), sources)
        if root in self.locals:
            if isinstance(target, ast.Name):
                for name in self.parts_of(root):
                    del self.names[name]
                self.names[root] = sources
            elif not self.keys(root, steps):
                name = named_part(chain) or root
                self.names[name] = self.names.get(name, NOTHING) | sources

    def _change(self, container: ast.expr, sources: Sources, *, adds: bool = False) -> None:
        """A method changes a container. ``adds``: as of ``ADDS``."""
        sources |= self.control
        self._store(container, sources, in_place=True)
        root, steps = name_chain(container) or ("", ())
        watched = self.watched(root, steps, in_place=True)
        own = frozenset(Source("state", key) for key in self.keys(root, steps, in_place=True))
        sources |= of_items(own, SIZE) if adds else own
        for value in (each.look_up() for each in watched):
            if isinstance(value, CONTAINERS):
                self.add("state", ("contents", id(value)), sources)

    def update(self, table: ast.expr, items: Mapping[str, ast.expr]) -> None:
        """A dict gets these items, and keeps its others."""
        for key, value in items.items():
            item = ast.copy_location(ast.Subscript(table, ast.Constant(key), ast.Store()), value)
            self._store(item, self.evaluate(value) | self.control)

    def _fill(self, tensor: ast.expr, sources: Sources) -> None:
        """The device copies into a tensor on the host, or into a part of it."""
        while name_chain(tensor) is None and isinstance(tensor, ast.Attribute | ast.Subscript):
            tensor = tensor.value
        root, steps = name_chain(tensor) or ("", ())
        values = self.flows.reads.values_of(self.code, root, steps)
        for key in (*self.keys(root, steps), *self.flows.reads.arrays_on(values)):
            self.add("state", key, sources)
        if root in self.locals and not steps:
            self.names[root] = self.names.get(root, NOTHING) | sources

    # --- expressions

    def evaluate(self, node: ast.AST | None) -> Sources:
        """The sources of an expression's value."""
        if node is None:
            return NOTHING
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            sources: Sources = method(node)
            return sources
        return self.consume(node, self.children(node))

    def children(self, node: ast.AST) -> Sources:
        sources: Sources = NOTHING
        for child in ast.iter_child_nodes(node):
            sources |= self.evaluate(child)
        return sources

    def consume(self, node: ast.AST, sources: Sources) -> Sources:
        """An expression with operands of these sources: a result on the device has none."""
        position = span_of(self.code, node)
        sources |= self.results(node, sources)
        if position in self.ran.ops:
            self.add("op", position, sources)
            return NOTHING
        operands = ast.iter_child_nodes(node) if isinstance(node, ast.BinOp | ast.Call) else ()
        if not any(map(self.is_tensor, operands)):
            return sources
        if id(self.code) in self.ran.hidden:
            self.add("op", position, sources)
        return NOTHING

    def results(self, node: ast.AST, operands: Sources) -> Sources:
        """What functions that an expression calls without a call (a property) return."""
        sources: Sources = NOTHING
        position = span_of(self.code, node)
        for number in self.ran.called.get(position, ()):
            names = parameters_of(self.ran.codes[number])
            sources |= self._apply(number, dict.fromkeys(names, operands))
        kind = self.ran.drawn.get(position)
        return sources | {Source(kind, position)} if kind else sources

    def _Name(self, node: ast.Name) -> Sources:  # noqa: N802
        return self._load(node, (node.id, ()))

    def _Attribute(self, node: ast.Attribute | ast.Subscript) -> Sources:  # noqa: N802
        sources = self._part_of(node)
        if isinstance(node, ast.Attribute) and node.attr in KINDS:
            return of_no_element(sources)
        if isinstance(node, ast.Subscript) and self.tries and self.is_past_end(node):
            return NOTHING
        return sources

    def _part_of(self, node: ast.Attribute | ast.Subscript) -> Sources:
        chain = name_chain(node)
        if chain is None:
            sources = self.children(node)
            return self.consume(
                node, of_tensor(sources) if self.is_tensor_of_result(node) else sources
            )
        sources = self.children(node) if ONE in chain[1] else NOTHING
        if ONE in chain[1][:-1] and self.keys(*chain):
            # Of `rows[i]["w"]`, the items of that name are known; `i` and the rows choose one.
            sources = in_order(sources)
        return sources | self._load(node, chain)

    _Subscript = _Attribute

    def _Tuple(self, node: ast.Tuple | ast.List) -> Sources:  # noqa: N802
        parts = ((each, self.evaluate(each)) for each in node.elts)
        return self.consume(node, self._sources_of_object(parts, None))

    _List = _Tuple

    def _Dict(self, node: ast.Dict) -> Sources:  # noqa: N802
        nodes = [each for each in (*node.keys, *node.values) if each is not None]
        return self.consume(
            node, self._sources_of_object(((x, self.evaluate(x)) for x in nodes), None)
        )

    def _Constant(self, _node: ast.Constant) -> Sources:  # noqa: N802
        return NOTHING

    def _Lambda(self, node: ast.AST) -> Sources:  # noqa: N802
        return NOTHING

    def _Compare(self, node: ast.Compare) -> Sources:  # noqa: N802
        if self.is_decided(node):
            for operand in (node.left, *node.comparators):
                self.evaluate(operand)
            return NOTHING
        is_order = all(isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in node.ops)
        pair = node.left, node.comparators[0]
        for limit, draw in (pair, pair[::-1]) if is_order and len(node.ops) == 1 else ():
            numbers = self.numbers(self.value_of(limit))
            is_outside = bool(numbers) and not any(0 < number < 1 for number in numbers)
            if is_outside and self.is_unit_draw(self.value_of(draw)):
                # `random() < self.rate` with a rate of 0 or 1 has the same answer in every call.
                self.evaluate(draw)
                return self.consume(node, self.evaluate(limit))
        changed = self._compared_with_last(node)
        if changed is not None:
            return self.consume(node, changed)
        tested = self.membership_or_none_test(node)
        if tested is not None:
            container, key = tested
            keys = self.keys(*(name_chain(container) or ("", ()))) if key == PRESENCE else ()
            own = frozenset(Source("state", each) for each in keys)
            sources = self.evaluate(container)
            sources = of_items(sources - own, key) | of_items(sources & own, ITSELF)
            if container is not node.left:
                sources |= self.evaluate(node.left) | self._presence(container, node.left)
        else:
            sources = self.children(node)
        if all(isinstance(each, ast.Is | ast.IsNot) for each in node.ops):
            sources = of_no_element(sources)
        return self.consume(node, sources)

    def _compared_with_last(self, node: ast.Compare) -> Sources | None:
        """The sources of a comparison of a value with that of the last call, which the code keeps:
        what decides whether the value changes, and whether it is kept. That it changes in every
        call does not matter."""
        pairs = assigned_parts(node.left, node.comparators[0]) if len(node.ops) == 1 else []
        sources: Sources = NOTHING
        for left, right in pairs:
            keys, value = self.last_of(left, right), right
            if not keys:
                keys, value = self.last_of(right, left), left
            if not keys:
                return None
            self.flows.steady |= self.steady(value)
            sources |= without_steps(self.evaluate(value), self.flows.steady)
            sources |= {Source("kept", key) for key in keys}
        return sources if pairs else None

    def _presence(self, container: ast.expr, key: ast.expr) -> Sources:
        """What stores the item of a key, or removes it, and so decides whether it is there."""
        root, steps = name_chain(container) or ("", ())
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return NOTHING
        places = frozenset(
            Source("state", ("item", id(watched.look_up()), key.value))
            for watched in self.watched(root, steps, in_place=True)
        )
        return of_items(places, PRESENCE)

    def _NamedExpr(self, node: ast.NamedExpr) -> Sources:  # noqa: N802
        sources = self.evaluate(node.value)
        self.bind(node.target, sources)
        return sources

    def _IfExp(self, node: ast.IfExp) -> Sources:  # noqa: N802
        self.implicit |= self.results(node, NOTHING)
        decision = self.decide(node.test, [node.body, node.orelse])
        return decision | self.evaluate(node.body) | self.evaluate(node.orelse)

    def _BoolOp(self, node: ast.BoolOp) -> Sources:  # noqa: N802
        """An operand decides whether the next ones run, which matters if they change tensors."""
        sources: Sources = NOTHING
        for number, value in enumerate(node.values, 1):
            following = node.values[number:]
            if self.flows.change_tensors(self.code, following):
                sources |= self.decide(value, following)
            sources |= self.evaluate(value)
        return self.consume(node, sources)

    def _ListComp(  # noqa: N802
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Sources:
        before = dict(self.names), self.aliases, self.locals
        self.aliases = with_items(self.aliases, node)
        # Before Python 3.12 they are variables of a function of its own.
        targets = (each for loop in node.generators for each in ast.walk(loop.target))
        self.locals = self.locals | {each.id for each in targets if isinstance(each, ast.Name)}
        sources: Sources = NOTHING
        for loop in node.generators:
            decision = self.decide(loop.iter, [node], loops=True)
            self.bind_item(loop, self.evaluate(loop.iter))
            sources |= decision
            for test in loop.ifs:
                sources |= self.decide(test, [node])
        for part in ("elt", "key", "value"):
            sources |= self.evaluate(getattr(node, part, None))
        self.names, self.aliases, self.locals = before
        return self.consume(node, sources)

    _SetComp = _GeneratorExp = _DictComp = _ListComp

    # --- calls

    def left_by(self, call: ast.Call, raised: Mapping[str, Sources]) -> None:
        """Of statements: ``flow_reader``."""

    def _Call(self, node: ast.Call) -> Sources:  # noqa: N802
        position = span_of(self.code, node)
        function = node.func
        chain, assigned = name_chain(node), set_by(node)
        if chain is not None or assigned is not None:
            sources = NOTHING.union(*map(self.evaluate, node.args[1:]))
            if assigned is not None:
                self._store(assigned, sources | self.control)
            return sources if chain is None else sources | self._load(node, chain)
        replaced = self._replaced_fields(node)
        if replaced is not None:
            return replaced
        values, words = node.args, node.keywords
        bound = self.bound(function)
        if bound is not None:
            function, values = bound.args[0], [*bound.args[1:], *values]
            words = [*bound.keywords, *words]
        chosen = self.evaluate(function)
        if isinstance(function, ast.Attribute):
            chosen |= self.evaluate(function.value)
        if position in self.ran.settled and position not in self.ran.drawn:
            chosen = NOTHING  # whatever the state of the generator
        arguments = [self.evaluate(argument) for argument in values]
        named = {word.arg: self.evaluate(word.value) for word in words}
        everything = chosen.union(*arguments, *named.values())
        name = getattr(function, "attr", None) or getattr(function, "id", "")
        if position in self.ran.seeds:
            self.add("seed", position, NOTHING.union(*arguments, *named.values()))
        if name in SET_MODES and position not in self.ran.called:
            self.add("mode", position, NOTHING.union(*arguments, *named.values()))
        if name == "len":
            everything = of_items(everything, SIZE)
        elif name in ASK_KINDS and position not in self.ran.called:
            chosen, everything = map(of_no_element, (chosen, everything))
            arguments = [*map(of_no_element, arguments)]
        kind = self.ran.drawn.get(position)
        drawn = frozenset((Source(kind, position),)) if kind else NOTHING
        key = values[0].value if values and isinstance(values[0], ast.Constant) else None
        if name == "get" and isinstance(key, str) and position not in self.ran.called:
            chosen = of_items(chosen, key)
            everything = chosen.union(*arguments, *named.values())
        updated = items_updated(node)
        if updated is not None and isinstance(function, ast.Attribute):
            self.update(function.value, updated)
        elif isinstance(function, ast.Attribute) and (
            # In a context of its own, a variable is what other code of the host sets.
            name in CHANGES or (kind is None and self.sets_event(function))
        ):
            adds = name in ADDS
            receiver = of_items(chosen, SIZE) if adds else chosen
            receiver = NOTHING if name == "set" else receiver
            changed = receiver.union(*arguments, *named.values())
            self._change(function.value, changed, adds=adds)
            popped = popped_by(node)
            if popped is not None:
                self._store(popped, self.control)
        elif isinstance(function, ast.Attribute) and self.changes_host_tensor(function):
            before = NOTHING if overwrites(f"aten::{name}") else chosen
            changed = before.union(self.control, *arguments, *named.values())
            self._store(function.value, changed, in_place=True)
        if isinstance(function, ast.Attribute) and name == "copy_" and kind == "copied":
            self._fill(function.value, drawn)
        if name in CHANGE_FIRST:
            for argument in node.args[:1]:
                self._change(argument, everything | drawn)
        for number in self.ran.handed.get(position, ()):
            names = parameters_of(self.ran.codes[number])
            drawn |= self._apply(number, dict.fromkeys(names, everything))
        called = self.ran.called.get(position)
        runs_ops = position in self.ran.ops
        is_resumed = name in RESUMING and any(
            self.ran.codes[number].co_flags & SUSPENDED for number in called or ()
        )
        if not is_resumed and (called or (runs_ops and not isinstance(function, ast.Attribute))):
            # The value is a function or a module. What a loop chooses is chosen by the loop.
            choosing = frozenset(each for each in chosen if each.kind != "beside")
            if not choosing <= self._deciding():
                self.branch(function, [node], choosing, calls=True)
            everything = NOTHING.union(*arguments, *named.values())
        is_method = isinstance(function, ast.Attribute) and self.is_tensor(function.value)
        if position in self.ran.shapes:
            held = [*zip(values, arguments, strict=True)]
            held += [(word.value, named[word.arg]) for word in words]
            template = values[:1] if str(name).endswith("_like") else []
            numbers = [
                sources
                for each, sources in held
                if each not in template and not self.is_tensor(each)
            ]
            self.add("op", position, NOTHING.union(*numbers, () if is_method else chosen))
        elif runs_ops or (is_method and name in MAY_COPY):
            self.add("op", position, everything)
        if is_method and name in SIZES:
            return everything | drawn
        if not called and (self.returns_nothing(node) or (name == "min" and self.is_capped(node))):
            return drawn
        if not called:
            if runs_ops or self.is_tensor(function):
                return drawn
            if (
                isinstance(function, ast.Name)
                and function.id not in MAKE_OBJECTS
                and hasattr(builtins, function.id)
            ):
                return everything | drawn
            # It may make an object of its arguments.
            parts = [*zip(values, arguments, strict=True)]
            parts += [(word.value, named[word.arg]) for word in words]
            return chosen | drawn | self._sources_of_object(parts, getattr(function, "value", None))
        # What a function of the host returns depends on the object that it is a method of, which
        # may be replaced (`self.phase = self.phase.next()`), and on the name that chooses it.
        result = drawn if position in self.ran.around else drawn | chosen
        result |= everything if is_resumed else NOTHING
        spread = any(isinstance(argument, ast.Starred) for argument in values) or None in named
        for number, direct in called.items():
            code = self.ran.codes[number]
            self.left_by(node, self.flows.raised.get(number, {}))
            if code.co_flags & inspect.CO_GENERATOR or is_special(code, name):
                result |= everything
            if name != code.co_name and "-packages/" in code.co_filename:
                # A method in C has called it: NumPy's `max` calls `_amax(a, axis, ...)`.
                passed = dict.fromkeys(parameters_of(code), everything | chosen)
            elif direct and not spread:
                passed = passed_to(code, arguments, named)
            else:
                passed = dict.fromkeys(parameters_of(code), everything)
            is_own = isinstance(function, ast.Attribute) and self.is_made_here(function.value)
            result |= self._apply(number, passed, chosen if is_own else NOTHING)
        return result

    def _replaced_fields(self, call: ast.Call) -> Sources | None:
        """What ``self.pair._replace(step=1)`` and ``replace(self.pair, step=1)`` return: the object
        with a new field, which is as good as assigned; None for other calls."""
        function = call.func
        name = getattr(function, "attr", None) or getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and name == "_replace":
            replaced: ast.expr | None = function.value
        else:
            replaced = call.args[0] if name == "replace" and call.args else None
        root, steps = (replaced is not None and name_chain(replaced)) or ("", ())
        places = self.watched(root, steps, in_place=True)
        keys = [
            each.key
            for each in places
            if each.key is not None and each.key != (id(each.look_up()), root)
        ]
        if not keys or not all(is_immutable(each.look_up()) for each in places):
            return None
        sources = frozenset(Source("whole", key) for key in keys)
        for word in call.keywords:
            values = self.evaluate(word.value) | self.control
            for key in keys:
                self.add("state", (*key, word.arg), values)
                sources |= {Source("state", (*key, word.arg))}
        return sources

    def _deciding(self) -> Sources:
        """What the branches depend on that decide whether the current statement runs."""
        sources: set[Source] = set(self.control)
        for decision in self.control:
            for table in (self.flows.facts, self.flows.summaries[id(self.code)]):
                sources |= table.get(("decision", decision.key), set())
        ordered = {
            each.key[0] for each in sources if each.kind == "item" and each.key[1] == (ORDER,)
        }
        return frozenset(sources | ordered)

    def _apply(
        self, number: int, arguments: dict[str, Sources], receiver: Sources = NOTHING
    ) -> Sources:
        """What a call of a function leads to; returns the sources of what it returns. ``receiver``:
        those of the object whose method it is, if that has no place with keys of its own."""
        result: Sources = NOTHING
        for fact, sources in list(self.flows.summaries[number].items()):
            passed = NOTHING.union(*(given_by(each, arguments, receiver) for each in list(sources)))
            if fact[0] == "return":
                result |= passed
            elif passed:
                self.flows.add(self.code, fact, everything_in(passed))
        return result

    # --- branches

    def decide(self, test: ast.expr, guarded: list[Any], *, loops: bool = False) -> Sources:
        """A condition over these statements or expressions; the source that it becomes."""
        sources = self.evaluate(test)
        if not loops and self.is_decided(test):
            return NOTHING
        asked = test.operand if isinstance(test, ast.UnaryOp) else test
        if not loops and isinstance(asked, ast.Name):
            sources = of_items(sources, SIZE)
        sources |= self.implicit
        position = span_of(self.code, test)
        if loops and position in self.ran.ops:
            return NOTHING
        if loops and name_chain(test) is not None:
            # How many items a container has does not depend on the numbers in them.
            sources = frozenset(each for each in sources if each.kind != "beside")
        if loops:
            sources = in_order(sources)
        if position in self.ran.reads:
            sources |= {Source("read", position)}
        return self.branch(test, guarded, sources, loops=loops)

    def branch(
        self,
        test: ast.AST,
        guarded: list[Any],
        sources: Sources,
        *,
        loops: bool = False,
        calls: bool = False,
    ) -> Sources:
        # What decides whether it is reached at all decides there.
        sources -= self.control
        if not sources:
            return NOTHING
        position = span_of(self.code, test)
        branch = self.flows.branches.get(position)
        if branch is None:
            branch = self.flows.branches[position] = Branch(
                self.code, position[1], loops=loops, calls=calls
            )
            branch.spans += [span_of(self.code, node) for node in guarded]
            branch.effects = self.flows.change_tensors(self.code, guarded)
            branch.selects = any(map(self.uses_tensors, guarded))
            branch.reads = any(map(self.reads_tensors, guarded))
        self.add("decision", position, sources)
        return frozenset((Source("decision", position),))
