"""What a name of the user's code leads to, without running the user's code."""

from __future__ import annotations

import collections
import contextlib
import gc
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.observe.frames import callers, locals_of
from cgtool.torch_compat.private import MODULE_TABLES, TABLES_OF, children_of
from cgtool.torch_compat.weak import Weak

_MANY = 4096
"""Items of a container that are looked at."""
MISSING = object()
"""The value of a name, attribute or item that does not exist."""
_SIMPLE = bool | int | float | complex | str


def weakly(value: Any) -> Callable[[], Any] | None:
    """A weak reference, or None for what has none: also for streams and events, because the
    destructors of those of CUDA leave weak references dangling (seen in PyTorch 2.11)."""
    if isinstance(value, torch.Event | torch.Stream):
        return None
    try:
        return Weak(value)
    except TypeError:
        return None


class Identity:
    """An object as itself: equal to no other, nor to one that is at its address after its death.
    Does not keep it alive."""

    __slots__ = ("_address", "_weak")

    def __init__(self, value: Any) -> None:
        self._address = id(value)
        self._weak = weakly(value)

    @property
    def is_alive(self) -> bool:
        """Whether the object is known to be alive."""
        return self._weak is not None and self._weak() is not None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Identity)
            and self._address == other._address
            and not any(weak is not None and weak() is None for weak in (self._weak, other._weak))
        )

    def __hash__(self) -> int:
        return self._address


def content_of(cell: types.CellType) -> Callable[[], Any]:
    def content() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    return content


def cells_of(
    code: types.CodeType, values: dict[str, Any]
) -> Iterator[tuple[types.FunctionType, dict[str, types.CellType]]]:
    """The functions that run this code, and their cells, which frames do not have. Of several
    functions, those whose cells hold what a frame's names hold."""
    candidates = [
        (function, dict(zip(code.co_freevars, function.__closure__ or (), strict=False)))
        for function in gc.get_referrers(code)
        if isinstance(function, types.FunctionType) and function.__code__ is code
    ]
    matching = [
        (function, cells)
        for function, cells in candidates
        if all(content_of(cell)() is values.get(name, MISSING) for name, cell in cells.items())
    ]
    yield from matching or candidates


class Closures:
    """The functions that share the variables of closures, none of which is kept alive."""

    def __init__(self) -> None:
        self._of_cell: dict[int, list[Weak[types.FunctionType]]] = {}
        """By id of a cell. While one of its functions lives, so does the cell."""

    def add(self, function: types.FunctionType) -> None:
        """Note a function: others may outlive it, or it them."""
        for cell in function.__closure__ or ():
            known = self._of_cell.get(id(cell), [])
            alive = [each() for each in known]
            if all(each is None for each in alive):
                # The cell that was here before is gone.
                self._of_cell[id(cell)] = [Weak(function)]
            elif all(each is not function for each in alive):
                known.append(Weak(function))

    def content(self, cell: types.CellType, name: str) -> Callable[[], Any]:
        """What a cell of a function that was added holds. Of an object, as long as such a function
        lives, or the one whose variable it is runs, or another keeps the object."""
        value = content_of(cell)()
        if value is MISSING or value is None or isinstance(value, _SIMPLE):
            return content_of(cell)
        number, functions = id(cell), self._of_cell[id(cell)]
        value_weak, place = weakly(value), _place_of(name, value)

        def content() -> Any:
            for function in functions:
                alive = function()
                for shared in (alive and alive.__closure__) or ():
                    if id(shared) == number:
                        return content_of(shared)()
            for frame in callers(sys._getframe(1)) if place else ():
                if (id(frame), frame.f_code) == place:
                    return locals_of(frame).get(name, MISSING)
            found = None if value_weak is None else value_weak()
            return MISSING if found is None else found

        return content


def _place_of(name: str, value: Any) -> tuple[int, types.CodeType] | None:
    """The running function, by its frame and code, that shares a variable with the functions in
    it."""
    for frame in callers(sys._getframe(1)):
        if name in frame.f_code.co_cellvars and locals_of(frame).get(name, MISSING) is value:
            return id(frame), frame.f_code
    return None


def resolve(value: Any, steps: tuple[tuple[str, str | int], ...]) -> Any:
    """Follow attributes and items without running the user's code. Of each item of a container,
    a tuple of what the steps lead to, if that is numbers or texts."""
    for index, (kind, name) in enumerate(steps):
        if value is None or value is MISSING:
            return MISSING
        if kind == "each":
            return _of_each(value, steps[index + 1 :])
        if kind == "item":
            value = _item(value, name)
        else:
            value = attribute_of(value, str(name))
    return value


def _of_each(value: Any, steps: tuple[tuple[str, str | int], ...]) -> Any:
    found = all_of(value, (("each", ""), *steps))
    parts = [tuple(part) if isinstance(part, list | collections.deque) else part for part in found]
    numbers = [each for part in parts for each in (part if type(part) is tuple else (part,))]
    is_simple = all(type(number) in (bool, int, float, str) for number in numbers)
    return tuple(numbers) if parts and is_simple else MISSING


def all_of(value: Any, steps: tuple[tuple[str, str | int], ...]) -> list[Any]:
    """What the steps lead to, from each item of the containers that they go through."""
    kinds = [kind for kind, _name in steps]
    if "each" not in kinds:
        found = resolve(value, steps)
        return [] if found is None or found is MISSING else [found]
    first = kinds.index("each")
    items = _items_of(resolve(value, steps[:first]))
    return [found for item in items for found in all_of(item, steps[first + 1 :])]


def _items_of(value: Any) -> list[Any]:
    value = behind(value)
    if isinstance(value, dict):
        items = list(dict.values(value))
    elif isinstance(value, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict):
        items = list(children_of(value).values())
    else:
        items = list(value) if type(value) in (list, tuple, collections.deque) else []
    return items[:_MANY]


def behind(value: Any) -> Any:
    """What stands behind a view of a dict (`types.MappingProxyType`) or a `weakref.proxy`; anything
    else is itself."""
    if type(value) in weakref.ProxyTypes:
        # `isinstance` asks the object, which may be gone.
        try:
            return value.__repr__.__self__
        except (ReferenceError, AttributeError):
            return MISSING
    if isinstance(value, types.MappingProxyType):
        return gc.get_referents(value)[0]
    return value


def is_gone(value: Any) -> bool:
    """Whether it is a weak proxy of an object that is gone: even `isinstance` raises for it."""
    return type(value) in weakref.ProxyTypes and behind(value) is MISSING


def holder_of_attributes(owner: Any) -> Any:
    """What keeps the attributes of an object: itself, or the dict of its class that all instances
    share (`self.__dict__ = self._shared_state`)."""
    kinds = type(owner).__mro__
    tables = [each for kind in kinds for each in vars(kind).values() if type(each) is dict]
    if not tables:
        return owner
    own = attribute_of(owner, "__dict__")
    return next((each for each in tables if each is own), owner)


def _item(value: Any, key: str | int) -> Any:
    value = behind(value)
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    if isinstance(value, torch.nn.ModuleList | torch.nn.Sequential) and isinstance(key, int):
        return children_of(value).get(str(key), MISSING)
    kind = type(value)
    base = next((base for base in kind.__mro__ if "__getitem__" in base.__dict__), None)
    if kind.__module__ == "numpy" or _is_of_python(base):
        try:
            return value[key]
        except Exception:  # no such key, or of another type
            return MISSING
    return MISSING


def _is_of_python(kind: type | None) -> bool:
    """Whether a type belongs to Python or to its own modules."""
    return str(getattr(kind, "__module__", "")).split(".")[0] in sys.stdlib_module_names


def attribute_of(value: Any, name: str) -> Any:
    """What Python finds, without running the user's code: of properties, only those of Python's
    own modules are called. The first of: a field in C of its type (a slot, a field of a named
    tuple), an attribute of its own, one of its types."""
    if name == "__class__":
        return type(value)
    table = _table_of(value)
    if name == "__dict__":
        return table
    is_type = isinstance(value, type)
    base = next((base for base in type(value).__mro__ if name in base.__dict__), None)
    member: Any = MISSING if base is None else base.__dict__[name]
    is_read = isinstance(member, (*_FIELDS, *(_COMPUTED if _is_of_python(base) else ())))
    if is_read and not is_type:
        try:
            return member.__get__(value)
        except Exception:  # an empty slot, a closed file
            return MISSING
    for part in value.__mro__ if is_type else ():
        if name in part.__dict__:
            return _bound(part.__dict__[name], None, value)
    if isinstance(table, dict):
        if name in table:
            return table[name]
        if isinstance(value, torch.nn.Module):
            is_script = isinstance(value, torch.jit.ScriptModule)
            for part, of_module in zip(MODULE_TABLES, TABLES_OF, strict=True):
                inner = of_module(value) if is_script else table.get(part) or {}
                if name in inner:
                    return inner[name]
    if is_type or isinstance(value, types.ModuleType):
        return MISSING
    return _bound(member, value, type(value))


_FIELDS = types.MemberDescriptorType, type(vars(collections.namedtuple("_Pair", "a"))["a"])
_COMPUTED = property, types.GetSetDescriptorType, types.DynamicClassAttribute
"""What computes an attribute: ``value`` of a shared number, of one of `ctypes` and of an enum."""
_BY_PYTHON = types.FunctionType, classmethod, staticmethod


def _bound(member: Any, instance: Any, owner: type) -> Any:
    """An attribute of a type as its instance, or the type itself, has it."""
    if isinstance(member, _BY_PYTHON):
        return member.__get__(instance, owner)
    return MISSING if hasattr(type(member), "__get__") else member


def _table_of(value: Any) -> Any:
    """The ``__dict__`` of an object: for `threading.local` that of the running thread."""
    for base in type(value).__mro__:
        find = base.__dict__.get("__getattribute__")
        if isinstance(find, types.WrapperDescriptorType):
            try:
                return find(value, "__dict__")
            except Exception:  # slots, builtins, and objects whose attributes raise
                return MISSING
    return MISSING


def in_slots(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that classes in Python keep outside the ``__dict__`` of an object."""
    for kind in type(value).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, types.MemberDescriptorType):
                # A field that was not set yet has no value.
                with contextlib.suppress(AttributeError):
                    yield name, member.__get__(value)


def undecorated(value: Any) -> types.FunctionType | None:
    """The function behind a method, and behind the wrappers of decorators; None for anything
    else."""
    function = value.__func__ if isinstance(value, types.MethodType) else value
    if not isinstance(function, types.FunctionType):
        return None
    function = inspect.unwrap(function)
    return function if isinstance(function, types.FunctionType) else None


def is_immutable(value: Any) -> bool:
    """Whether its attributes and items cannot be assigned to: a tuple, a frozen dataclass."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return isinstance(value, tuple) or bool(getattr(parameters, "frozen", False))
