"""The places from which captured code reads objects and containers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from cgtool.detectors.script.host_states import COUNTED, is_value, items_of
from cgtool.observe.flow_names import RECEIVERS
from cgtool.observe.host_reads import NameIn, Watched
from cgtool.observe.lookup import MISSING, Identity, behind, resolve
from cgtool.observe.script.names import Root, Stack
from cgtool.observe.uses import Step


class Receivers:
    """The places from which captured code reads the objects whose properties and methods run:
    ``self.bits`` of ``self.bits.levels``. Another object there has other fields."""

    def __init__(self, watched: Iterable[Watched]) -> None:
        self._places: dict[tuple[int, str], list[tuple[Watched, int]]] = {}
        """By id of the object and name of the function: a place, and the number of its steps that
        lead to the object."""
        for each in watched:
            value = each.root()
            for index, (kind, name) in enumerate(each.use.steps):
                if kind == "each" or value is None or value is MISSING:
                    break
                if kind == "attribute":
                    place = id(value), str(name)
                    self._places.setdefault(place, []).append((each, index))
                value = resolve(value, ((kind, name),))

    def of(self, watched: Watched, depth: int = 2) -> Iterator[Watched]:
        """What a method reads of its object, as read from the places that have the object."""
        use, root = watched.use, watched.root
        value = root()
        is_receiver = use.scope == "argument" and use.root in RECEIVERS
        # A module that is replaced has its own finding.
        if not is_receiver or isinstance(value, torch.nn.Module | type) or value is MISSING:
            return
        name = watched.frame.function.rpartition(".")[2]
        known: set[tuple[int, tuple[Step, ...]]] = set()
        for place, count in self._places.get((id(value), name), ()):
            outer = place.use
            # The lines around a capture may give a name to the next object.
            if count == 0 and not (is_value(value) and outer.scope != "argument"):
                continue
            if not isinstance(place.root, NameIn | weakref.ref) and outer.scope != "global":
                continue
            steps = outer.steps[:count]
            if (id(place.root()), steps) in known:
                continue
            known.add((id(place.root()), steps))
            read = replace(use, root=outer.root, scope=outer.scope, steps=(*steps, *use.steps))
            yield replace(place, use=read)
            if depth and outer.root in RECEIVERS:
                inner = replace(place, use=replace(outer, steps=(*steps, *use.steps)))
                yield from self.of(inner, depth - 1)


class Containers:
    """The places from which captured code reads containers: that which a function has as an
    argument has a name where it is called."""

    def __init__(self, watched: Iterable[Watched]) -> None:
        self._changed: set[Any] = set()
        """Keys and ids of those that the captured code changes itself."""
        self._looped_over: set[int] = set()
        """Ids."""
        self._places: dict[int, list[Watched]] = {}
        """By id."""
        for each in watched:
            value = behind(each.look_up())
            if isinstance(value, COUNTED):
                self._places.setdefault(id(value), []).append(each)
                if each.use.written:
                    self._changed |= {each.key, id(value)}
                if each.use.counted == "loop":
                    self._looped_over.add(id(value))

    def is_reported(self, watched: Watched, value: Any) -> bool:
        """Whether a change of its number of items is reported where it is read: not of one that the
        captured code changes itself; of several reads the loop."""
        number = id(behind(value))
        is_loop = watched.use.counted == "loop" or number not in self._looped_over
        return is_loop and self._changed.isdisjoint((watched.key, number))

    def places_of(self, watched: Watched) -> Iterator[Watched]:
        """The place that is read, or, if that keeps the container alive, those that do not."""
        if not keeps_alive(watched):
            yield watched
            return
        value = behind(watched.look_up())
        for place in self._places.get(id(value), ()):
            if not keeps_alive(place) and not place.use.counted:
                yield replace(place, use=replace(place.use, counted=watched.use.counted))
                return


def of_the_same(
    before: Collection[Identity], root: Root, read: Callable[[Stack], Hashable]
) -> Callable[[Stack], Hashable]:
    """``read``, as long as the name has a container with one of the items that it had: the lines
    around a capture may give the name to the next one."""

    def read_same(stack: Stack) -> Hashable:
        now = root(stack)
        is_same = isinstance(behind(now), COUNTED) and any(
            Identity(item) in before for item in items_of(now)
        )
        return read(stack) if is_same or not before else MISSING

    return read_same


def keeps_alive(watched: Watched) -> bool:
    """Whether it would keep alive what the script has passed."""
    return watched.use.scope == "argument" and not isinstance(watched.root, NameIn | weakref.ref)
