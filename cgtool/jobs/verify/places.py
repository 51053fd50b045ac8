"""Places that hold objects and can be set back: dictionaries, attributes, cells, gradients.

The state of a program, as far as it is known here, is what stands in each of these places and the
contents of the tensors that they lead to (``cgtool.jobs.verify.state``).
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import torch

Items = dict[Any, Any]


class Place(ABC):
    """One place."""

    @abstractmethod
    def items(self) -> Items:
        """What stands in it."""

    @abstractmethod
    def put(self, items: Items) -> None:
        """Make it hold exactly that again."""

    def restore(self, items: Items) -> None:
        """Put back what is not there any more; a place that did not change is not touched."""
        now = self.items()
        if len(now) == len(items) and all(
            (key is other or _equal(key, other)) and value is one
            for (key, value), (other, one) in zip(items.items(), now.items(), strict=True)
        ):
            return
        self.put(items)


def _equal(key: Any, other: Any) -> bool:
    """Of two keys; tensors are equal only to themselves, and others may say what they like."""
    return isinstance(key, str | int | tuple) and type(key) is type(other) and key == other


class DictPlace(Place):
    """A dictionary, or the attributes of an object."""

    def __init__(self, table: dict[Any, Any]) -> None:
        self.table = table

    def items(self) -> Items:
        return dict(self.table)

    def put(self, items: Items) -> None:
        self.table.clear()
        self.table.update(items)


class GlobalsPlace(Place):
    """The globals that one function names."""

    def __init__(self, table: dict[str, Any], names: tuple[str, ...]) -> None:
        self.table = table
        self.names = names

    def items(self) -> Items:
        return {name: self.table[name] for name in self.names if name in self.table}

    def put(self, items: Items) -> None:
        for name in self.names:
            if name in items:
                self.table[name] = items[name]
            else:
                self.table.pop(name, None)


class ListPlace(Place):
    """A list or a deque."""

    def __init__(self, values: list[Any] | deque[Any]) -> None:
        self.values = values

    def items(self) -> Items:
        return dict(enumerate(self.values))

    def put(self, items: Items) -> None:
        self.values.clear()
        self.values.extend(items.values())


class SetPlace(Place):
    def __init__(self, values: set[Any]) -> None:
        self.values = values

    def items(self) -> Items:
        return dict.fromkeys(self.values)

    def put(self, items: Items) -> None:
        self.values.clear()
        self.values.update(items)


class SlotsPlace(Place):
    """The ``__slots__`` of an object."""

    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self.owner = owner
        self.names = names

    def items(self) -> Items:
        return {name: getattr(self.owner, name) for name in self.names if hasattr(self.owner, name)}

    def put(self, items: Items) -> None:
        for name in self.names:
            if name in items:
                object.__setattr__(self.owner, name, items[name])
            elif hasattr(self.owner, name):
                object.__delattr__(self.owner, name)


class CellPlace(Place):
    """A variable that a function closes over."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def items(self) -> Items:
        try:
            return {0: self.cell.cell_contents}
        except ValueError:
            return {}

    def put(self, items: Items) -> None:
        if items:
            self.cell.cell_contents = items[0]
        else:
            del self.cell.cell_contents


class GradPlace(Place):
    """``.grad`` of a leaf."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def items(self) -> Items:
        return {"grad": self.tensor.grad}

    def put(self, items: Items) -> None:
        self.tensor.grad = items["grad"]


class DataPlace(Place):
    """The memory that a tensor stands on, which ``p.data = q`` exchanges."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def items(self) -> Items:
        return {"data": self.tensor.detach()}

    def put(self, items: Items) -> None:
        self.tensor.data = items["data"]

    def restore(self, items: Items) -> None:
        data = items["data"]
        if self.tensor.data_ptr() != data.data_ptr() or self.tensor.shape != data.shape:
            self.put(items)
