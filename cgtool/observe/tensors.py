"""Tensors: which are on the GPU and which on the host, their storages, and those in arguments.

On the simulated device all of them are CPU tensors. What an op of the device made is marked, on its
storage: views, parameters and detached tensors share it. What has no mark is on the host: it came
from Python, NumPy, a file, or an op on such tensors.

A sparse tensor is made of its indices and values, a wrapper subclass (a jagged nested tensor, a
quantized weight) of those that its ``__tensor_flatten__`` names (torch.utils._python_dispatch,
``is_traceable_wrapper_subclass``). They have addresses and sizes; the tensor itself has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from cgtool.torch_compat.op_key import unintercepted
from cgtool.torch_compat.private import (
    VERSION,
    dispatches_to_python,
    is_functorch_tensor,
    is_traceable_wrapper_subclass,
    pytree,
    sparse_indices,
    sparse_values,
    storage_address,
    storage_key,
    storage_of_weak,
    unwrapped,
)
from cgtool.torch_compat.storages import StorageMarks, StorageRef, extent, storage_bytes

# --- on the GPU or on the host

DEVICE, HOST, PINNED = "device", "host", "pinned"
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_marks: StorageMarks[str] = StorageMarks()
"""The places of the storages that ops of the simulated device made. Not an attribute of the
storage: the Python object that holds it would be an owner, and autograd accumulates gradients in
place only in storages that have a single owner."""


_numbers: StorageMarks[bool] = StorageMarks()
"""The storages of numbers of Python that PyTorch has converted to another type, as tensors."""


def note_number(tensor: torch.Tensor) -> None:
    """Note that a tensor is a number of Python that PyTorch has converted."""
    _numbers.put(tensor, True)


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor on the host is such a number, and none of the program's."""
    return bool(_numbers.get(storage_address(tensor)))


def _by_mark(tensor: torch.Tensor) -> str:
    if type(tensor) in _PLAIN or not dispatches_to_python(tensor):
        try:
            return _marks.get(storage_address(tensor)) or HOST
        except RuntimeError:
            pass
    places = {_by_mark(part) for part in _wrapped(tensor)}
    # Not known: that can hide a mistake, but never invents one.
    return DEVICE if DEVICE in places or not places else places.pop()


def _really(tensor: torch.Tensor) -> str:
    if tensor.is_cuda:
        return DEVICE
    if tensor.device.type != "cpu":
        return HOST
    # It is an op, whose observer may ask for places.
    with unintercepted():
        return PINNED if tensor.is_pinned() else HOST


_place = _really


def place_of(tensor: torch.Tensor) -> str:
    """``device``, ``host`` or ``pinned``."""
    return _place(tensor)


@contextlib.contextmanager
def marked_places() -> Iterator[None]:
    """While entered, the place of a tensor is what its mark says: on the simulated device."""
    global _place
    before, _place = _place, _by_mark
    try:
        yield
    finally:
        _place = before


def runs_on_the_cpu() -> bool:
    """Whether what is on the device has its ops run by the CPU: on the simulated device."""
    return _place is _by_mark


def all_on_host() -> bool:
    """Whether no tensor of the simulated device was made yet."""
    return not _marks


def put(tensor: torch.Tensor, place: str) -> None:
    """Mark a new tensor of the simulated device."""
    try:
        # What has no mark is on the host.
        if place != HOST or _marks.get(storage_address(tensor)):
            _marks.put(tensor, place)
    except RuntimeError:
        for part in _wrapped(tensor):
            put(part, place)


def put_storage(storage: torch.UntypedStorage, place: str) -> None:
    """Mark the storage of new tensors."""
    if place != HOST or _marks.get(storage_key(storage)):
        _marks.put_storage(storage, place)


def storage_place(storage: torch.UntypedStorage) -> str:
    """The place of tensors that have this storage."""
    if _place is _by_mark:
        return _marks.get(storage_key(storage)) or HOST
    if storage.is_cuda:
        return DEVICE
    with unintercepted():
        return PINNED if storage.device.type == "cpu" and storage.is_pinned() else HOST


def is_on_host(key: int) -> bool:
    """Whether a living storage is not on the GPU, by its ``storage_key``."""
    if _place is _by_mark:
        return (_marks.get(key) or HOST) != DEVICE
    return storage_of_weak(key).device.type != "cuda"


def on_host(tensor: torch.Tensor) -> bool:
    # Asking whether memory is pinned is an op, and takes longer than everything else here.
    return not tensor.is_cuda if _place is _really else _place(tensor) != DEVICE


def is_cuda_device(value: Any) -> bool:
    """True for what names a GPU as an argument: ``"cuda:0"``, ``torch.device("cuda")``."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def is_cpu_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cpu"
    return isinstance(value, str) and (value == "cpu" or value.startswith("cpu:"))


# --- storages

_COMPRESSED: dict[torch.layout, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices, torch.Tensor.values),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices, torch.Tensor.values),
    # _indices and _values take an uncoalesced tensor as it is.
    torch.sparse_coo: (sparse_indices, sparse_values),
}


def strided_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """(suffix, tensor) of the tensors with storage that this one is made of: itself with ``""``,
    ``.crow_indices``, ``.values``, ``.weight``. Empty when its memory cannot be read (opaque
    layouts, functorch's wrappers, fake and meta tensors)."""
    if tensor.is_meta:
        return []
    readers = _COMPRESSED.get(tensor.layout)
    if readers is not None:
        with unintercepted():
            return [(f".{reader.__name__.lstrip('_')}", reader(tensor)) for reader in readers]
    wraps: bool = is_traceable_wrapper_subclass(tensor)
    if wraps:
        return _inner(tensor)
    if tensor.is_nested:
        return [(".values", tensor.values())]
    try:
        readable = StorageRef(tensor).address != 0 or tensor.numel() == 0
    except (RuntimeError, ValueError):  # the last: parameters of lazy modules
        return []
    return [("", tensor)] if readable else []


def _wrapped(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a tensor without storage of its own is made of."""
    if is_functorch_tensor(tensor):
        return [unwrapped(tensor)]
    try:
        return [part for _, part in strided_parts(tensor) if part is not tensor]
    except AttributeError:  # a wrapper under construction
        return []


def whole_or_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """(suffix, tensor) of what can be copied and compared without the ops of a subclass: the tensor
    itself with ``""``, or its ``strided_parts`` if it is nested or wraps other tensors. Empty for a
    wrapper that does not name what it wraps."""
    wraps: bool = is_traceable_wrapper_subclass(tensor)
    if wraps or tensor.is_nested:
        return strided_parts(tensor)
    is_opaque = dispatches_to_python(tensor) and not strided_parts(tensor)
    return [] if is_opaque else [("", tensor)]


def has_shape(tensor: torch.Tensor) -> bool:
    """Whether it is one block of memory with sizes and strides. A nested tensor without
    ``layout=torch.jagged`` says that it is strided, and raises when it is asked for its shape."""
    return tensor.layout == torch.strided and not tensor.is_nested


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether it is one block of memory with an address: no subclass, and none of the layouts and
    wrappers that ``strided_parts`` takes apart or cannot read."""
    return type(tensor) in _PLAIN and has_shape(tensor) and bool(strided_parts(tensor))


def is_emptied(tensor: torch.Tensor) -> bool:
    """Whether it has a storage that is too small for it: the program has given its memory back, by
    ``untyped_storage().resize_(0)``, and nobody may read it."""
    if not has_shape(tensor) or tensor.is_meta:
        return False
    try:
        return storage_bytes(tensor) < needed_bytes(tensor)
    except (RuntimeError, ValueError):
        return False


def needed_bytes(tensor: torch.Tensor) -> int:
    """The smallest size of a storage that has all elements of a strided tensor."""
    if not tensor.numel():
        return 0
    elements = tensor.storage_offset() + extent(tensor.shape, tensor.stride())
    return int(elements) * tensor.element_size()


def _inner(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    names, _ = tensor.__tensor_flatten__()
    return [
        (f".{name}{suffix}", part)
        for name in names
        for suffix, part in strided_parts(getattr(tensor, name))
    ]


def key_of(tensor: torch.Tensor) -> int | None:
    """The ``storage_key`` of a tensor's storage; None for tensors that have no storage of their own
    (sparse, nested, functorch's)."""
    try:
        return storage_address(tensor)
    except RuntimeError:
        return None


# --- autograd


def nodes_behind(nodes: Iterable[Any]) -> Iterator[Any]:
    """These nodes of the autograd graph, and all that a backward from them runs, each once."""
    pending, visited = list(nodes), set()
    while pending:
        node = pending.pop()
        if node is not None and node not in visited:
            visited.add(node)
            pending += (following for following, _ in node.next_functions)
            yield node


def leaves_behind(tensors: Iterable[torch.Tensor]) -> set[int]:
    """``id`` of every leaf that backward from these tensors accumulates into."""
    tensors = list(tensors)
    nodes = nodes_behind(tensor.grad_fn for tensor in tensors)
    variables = (getattr(node, "variable", None) for node in nodes)
    roots = (tensor for tensor in tensors if tensor.grad_fn is None)
    return {id(leaf) for leaf in (*variables, *roots) if leaf is not None}


_TAKEN = "cgtool: gradients were taken"
"""In the metadata of a node, which live and end with it."""


def note_gradients_taken(outputs: Iterable[Any], inputs: Iterable[Any], kept: bool) -> None:
    """Note in the nodes of the graph that a backward from ``outputs`` to ``inputs`` (tensors or
    edges) is about to run; ``kept`` if they can run again."""
    ends = {id(end) for each in inputs for end in (each, _node_of(each)) if end is not None}
    users: dict[Any, list[Any]] = {}
    run: list[Any] = []
    for node in nodes_behind(map(_node_of, outputs)):
        for following, _ in node.next_functions:
            users.setdefault(following, []).append(node)
        leaf = getattr(node, "variable", None)
        if id(node) in ends or id(leaf) in ends:
            run.append(node)
            if leaf is not None:
                node.metadata[_TAKEN] = getattr(leaf, VERSION)
    reached = set(run)
    while run:
        for node in users.get(run.pop(), ()):
            if node not in reached:
                reached.add(node)
                run.append(node)
            if not kept:
                node.metadata[_TAKEN] = None


def _node_of(end: Any) -> Any:
    return end.grad_fn if isinstance(end, torch.Tensor) else end.node


def are_gradients_taken(tensor: torch.Tensor) -> bool:
    """Whether a backward has used up the graph behind a tensor, or a leaf was overwritten since a
    backward gave its gradient."""
    for node in nodes_behind((tensor.grad_fn,)):
        if _TAKEN in node.metadata:
            version, leaf = node.metadata[_TAKEN], getattr(node, "variable", None)
            if leaf is None or getattr(leaf, VERSION) != version:
                return True
    return False


def is_leaf(tensor: torch.Tensor) -> bool:
    """``Tensor.is_leaf``, which raises for a view that autograd has given up: one of several that
    an op returned (`split`, `unbind`), after their base was written in place."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


# --- tensors in arguments and results


FROM_DATA = ("tensor", "as_tensor", "asarray")
"""Functions of ``torch`` that make a tensor of Python's and NumPy's data."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors anywhere in arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def listed_tensors(values: Iterable[Any], inside: tuple[int, ...] = ()) -> list[torch.Tensor]:
    """Tensors among arguments or results, and in the lists and dictionaries among them: a fraction
    of the cost of ``tensors_in``. ``inside``: the ids of what the values are in."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple, dict)) and id(value) not in inside:
            parts = value.values() if isinstance(value, dict) else value
            tensors += listed_tensors(parts, (*inside, id(value)))
    return tensors


def strided(value: Any) -> list[torch.Tensor]:
    """The tensors anywhere in a value that are one block of memory."""
    return list(filter(has_shape, tensors_in(value)))
