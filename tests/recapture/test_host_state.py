"""Host state is read, compared item by item, changed and restored."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cgtool.program.reach import Reachable
from cgtool.recapture.host_state import ABSENT, HostState, plain_values

calls = 0


class Slotted:
    __slots__ = ("unset", "value")

    def __init__(self) -> None:
        self.value = 1


class Shared:
    total = 0


class Engine:
    def __init__(self) -> None:
        self.counter = 0
        self.rate = 0.5
        self.flag = False
        self.name = "first"
        self.options = {"lr": 0.1, "steps": [1, 2]}
        self.buckets = [1, 2, 4]
        self.window = deque([1, 2], maxlen=4)
        self.seen = {1, 2}
        self.pair = ([1], {"depth": 2})
        self.slotted = Slotted()
        self.weight = torch.zeros(3)
        self.ids = torch.arange(4)
        self.table = np.zeros(3)
        self.own_random = random.Random(1)
        self.own_numpy = np.random.default_rng(1)
        self.own_torch = torch.Generator().manual_seed(1)
        self.rows = iter([1, 2, 3, 4])
        self.numbers = itertools.count(5)
        self.zipped = zip(itertools.count(), [1, 2, 3], strict=False)
        self.kind = Shared
        local = 0

        def step() -> int:
            global calls
            nonlocal local
            local += 1
            calls += 1
            return local

        self.step = step


def _state(engine: Engine) -> HostState:
    return HostState(lambda: Reachable([("engine", engine)]))


def _draw(name: str, method: str, engine: Engine) -> None:
    getattr(getattr(engine, name), method)()


CHANGES: dict[str, Any] = {
    "engine.counter": lambda e: setattr(e, "counter", e.counter + 1),
    "engine.rate": lambda e: setattr(e, "rate", e.rate / 2),
    "engine.flag": lambda e: setattr(e, "flag", True),
    "engine.name": lambda e: setattr(e, "name", "second"),
    "engine.options['lr']": lambda e: e.options.update(lr=0.2),
    "engine.options['steps']": lambda e: e.options["steps"].append(3),
    "engine.buckets[2]": lambda e: e.buckets.__setitem__(2, 8),
    "engine.window": lambda e: e.window.append(3),
    "engine.seen": lambda e: e.seen.add(3),
    "engine.pair[0][0]": lambda e: e.pair[0].__setitem__(0, 2),
    "engine.pair[1]['depth']": lambda e: e.pair[1].update(depth=3),
    "engine.slotted.value": lambda e: setattr(e.slotted, "value", 2),
    "engine.weight": lambda e: e.weight.add_(1),
    "engine.ids": lambda e: e.ids.__setitem__(0, 9),
    "an array": lambda e: e.table.__setitem__(1, 2.0),
    "engine.rows": lambda e: next(e.rows),
    "engine.numbers": lambda e: next(e.numbers),
    "engine.zipped": lambda e: next(e.zipped),
    "engine.kind.total": lambda e: setattr(e.kind, "total", e.kind.total + 1),
    "random 1": partial(_draw, "own_random", "random"),
    "random 2": partial(_draw, "own_numpy", "random"),
    "random 3": lambda e: torch.rand(1, generator=e.own_torch),
    "random 4": lambda _: random.random(),
    "random 5": lambda _: np.random.rand(),
    "random 6": lambda _: torch.rand(1),
}
"""By path: what changes that, and nothing else. A generator has no name of its own."""
some_changes = st.lists(st.sampled_from(sorted(CHANGES)), unique=True)


def _named(paths: list[str]) -> list[str]:
    generator = "a random generator of the host"
    return sorted(generator if path.startswith("random") else path for path in paths)


@given(some_changes)
def test_what_was_changed_is_named_and_restored(paths: list[str]) -> None:
    engine = Engine()
    state = _state(engine)
    before = state.read()
    for path in paths:
        CHANGES[path](engine)
    after = state.read()
    assert sorted(item.path for item in state.differences(before, after)) == _named(paths)
    state.restore(before)
    assert not state.differences(before, state.read())
    state.restore(after)
    assert not state.differences(after, state.read())
    state.restore(before)


@given(some_changes, st.randoms(use_true_random=False))
def test_chosen_items_are_set_and_no_others(paths: list[str], choice: random.Random) -> None:
    engine = Engine()
    state = _state(engine)
    before = state.read()
    for path in paths:
        CHANGES[path](engine)
    after = state.read()
    items = state.differences(before, after)
    chosen = [item for item in items if choice.random() < 0.5]
    state.restore(before.with_items(after, chosen))
    now = state.read()
    assert [item.key for item in state.differences(before, now)] == [item.key for item in chosen]
    left = [item.key for item in state.differences(now, after)]
    assert left == [item.key for item in items if item not in chosen]
    state.restore(before)


def test_variables_of_closures_and_modules_are_named_as_the_code_names_them() -> None:
    engine = Engine()
    state = _state(engine)
    before = state.read()
    number = calls
    assert engine.step() == 1
    items = {
        item.path: (item.before, item.after) for item in state.differences(before, state.read())
    }
    assert items == {"local": (0, 1), "calls": (number, number + 1)}
    state.restore(before)
    assert engine.step() == 1
    assert calls == number + 1
    state.restore(before)


def test_iterators_share_nothing_with_their_copies() -> None:
    makers: list[Any] = [
        lambda: iter([1, 2, 3]),
        lambda: iter(range(5)),
        lambda: iter({1: 2, 3: 4, 5: 6}),
        lambda: enumerate("abc"),
        lambda: map(str, iter([1, 2, 3])),
        lambda: filter(None, iter([1, 2, 3])),
        lambda: itertools.cycle([1, 2, 3]),
        lambda: itertools.chain([1], [2, 3]),
        lambda: itertools.islice(itertools.count(), 7),
        lambda: zip(enumerate([1, 2, 3]), itertools.count(), strict=False),
        lambda: reversed([1, 2, 3]),
    ]
    for make in makers:
        holder = {"it": make()}
        state = HostState(lambda holder=holder: Reachable([("holder", holder)]))
        first = next(holder["it"])
        before = state.read()
        following = [next(holder["it"]) for _ in range(2)]
        kinds = [item.kind for item in state.differences(before, state.read())]
        assert kinds == ["iterator"], before.iterators
        for _ in range(2):
            state.restore(before)
            assert [next(holder["it"]) for _ in range(2)] == following, (make, first)


def test_an_iterator_with_two_names_stays_one() -> None:
    rows = iter([1, 2, 3, 4])
    holder = {"rows": rows, "pairs": zip(rows, rows, strict=False), "again": [rows]}
    state = HostState(lambda: Reachable([("holder", holder)]))
    state.restore(state.read())
    assert next(holder["rows"]) == 1
    assert next(holder["again"][0]) == 2
    assert next(holder["pairs"]) == (3, 4)


def test_what_replaces_another_object_is_restored_too() -> None:
    engine = Engine()
    state = _state(engine)
    before = state.read()
    engine.options = {"lr": 0.3}
    after = state.read()
    assert [(item.path, item.kind) for item in state.differences(before, after)] == [
        ("engine.options", "object")
    ]
    engine.options["lr"] = 0.4
    state.restore(after)
    assert engine.options == {"lr": 0.3}
    state.restore(before)
    assert engine.options == {"lr": 0.1, "steps": [1, 2]}


def test_numbers_of_the_callers_choice() -> None:
    engine = Engine()
    state = _state(engine)
    before = state.read()
    engine.counter, engine.buckets[0] = 1, 3
    engine.weight += 1
    after = state.read()
    items = {item.path: item for item in state.differences(before, after)}
    chosen = [items["engine.counter"], items["engine.weight"]]
    state.restore(after.with_numbers(chosen, [500, torch.full((3,), 7.0)]))
    assert (engine.counter, engine.buckets, engine.weight.tolist()) == (500, [3, 2, 4], [7.0] * 3)
    state.restore(after.with_numbers([items["engine.counter"]], [ABSENT]))
    assert not hasattr(engine, "counter")
    state.restore(before)
    assert (engine.counter, engine.buckets[0]) == (0, 1)


def test_plain_values_of_another_time() -> None:
    engine = Engine()
    state = _state(engine)
    values = plain_values(Reachable([("engine", engine)]))
    engine.counter, engine.name, engine.late = 3, "second", 4
    items = state.changed_since(values, state.read())
    assert {item.path: (item.before, item.kind) for item in items} == {
        "engine.counter": (0, "number"),
        "engine.name": ("first", "value"),
        "engine.late": (ABSENT, "value"),
    }
    counter = next(item for item in items if item.path == "engine.counter")
    assert counter.text == "`engine.counter` was 0, then 3"


def test_numbers_that_are_none_are_as_before() -> None:
    holder = {"x": math.nan, "values": torch.tensor([math.nan]), "array": np.array([math.nan])}
    state = HostState(lambda: Reachable([("holder", holder)]))
    assert not state.differences(state.read(), state.read())


class Raising:
    @property
    def __dict__(self) -> Any:
        raise RuntimeError("nothing to see")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = object.__hash__


def _generator() -> Any:
    yield from [1, 2, 3]


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_restored_does_not_raise(tmp_path: Path) -> None:
    file = (tmp_path / "log.txt").open("w")
    holder = {
        "raising": Raising(),
        "set": {Raising()},
        "file": file,
        "lock": threading.Lock(),
        "thread": threading.Thread(),
        "generator": _generator(),
        "zipped": zip(_generator(), [1, 2], strict=False),
        "lines": map(str, file),
        "module": math,
        "frozen": torch.zeros(2).numpy(),
        "sparse": torch.eye(2).to_sparse(),
        "random": random.SystemRandom(),
    }
    holder["frozen"].setflags(write=False)
    state = HostState(lambda: Reachable([("holder", holder)]))
    before = state.read()
    file.write("text")
    next(holder["generator"]), next(holder["zipped"])
    after = state.read()
    for reading in (before, after):
        for item in state.differences(before, after):
            assert item.text
        state.restore(reading)
    state.seed(3)
    file.close()
    state.restore(before)


def test_seeds_lead_to_the_same_numbers() -> None:
    engine = Engine()
    state = _state(engine)
    before = state.read()

    def drawn() -> list[float]:
        state.seed(7)
        numbers = [random.random(), float(np.random.rand()), engine.own_random.random()]
        return [*numbers, float(engine.own_numpy.random()), float(torch.rand(1))]

    assert drawn() == drawn()
    state.restore(before)
