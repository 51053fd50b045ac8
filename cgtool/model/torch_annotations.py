"""PyTorch's own records about the nodes of graphs: its annotations and its launch stacks.

``torch.cuda.graph_annotations.get_kernel_annotations()`` returns a mapping, which PyTorch's
documentation saves as a pickle; ``dump_kernel_py_stacks`` writes gzipped JSON. The keys of both are
node ids. A pickle can call any function, so only pickles of plain data are read.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec

from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import open_regular

_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
_MOST_BYTES = 1 << 30
_MOST_ITEMS = 64
_STACK = "launched at"
_HOW = "pickle.dump(dict(torch.cuda.graph_annotations.get_kernel_annotations()), file)"


class _Tuple(list[Any]):
    """Shown as a tuple. Not hashable: hashing a deeply nested tuple as the key of a dictionary
    crashes the process."""

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self))}{',' if len(self) == 1 else ''})"


def _as_tuple(count: int) -> Callable[[Any], None]:
    def load(unpickler: Any) -> None:
        unpickler.stack[-count:] = [_Tuple(unpickler.stack[-count:])]

    return load


def _marked(unpickler: Any) -> None:
    items = unpickler.pop_mark()
    unpickler.append(_Tuple(items))


class _PlainUnpickler(pickle._Unpickler):
    """Reads numbers, strings and containers of them. These need no class, so none is looked up.

    Python's unpickler in C allocates as much memory as an index in the file says."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.TUPLE[0]: _marked,
        pickle.TUPLE1[0]: _as_tuple(1),
        pickle.TUPLE2[0]: _as_tuple(2),
        pickle.TUPLE3[0]: _as_tuple(3),
    }

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it contains an object, {module_name}.{global_name}")


def read(path: Path) -> dict[int, dict[str, str | int]]:
    """The facts about each node, by node id. Raises CgtoolError (exit 2) for any other file."""
    try:
        with open_regular(path, "PyTorch's graph annotations", _HOW) as file:
            if path.stat().st_size > _MOST_BYTES:
                raise _refused(path, "it is larger than 1 GiB")
            begin = file.read(2)
            file.seek(0)
            if begin == _GZIP:
                with gzip.open(file) as unpacked:
                    data = unpacked.read(_MOST_BYTES)
                stacks = msgspec.json.decode(data, type=dict[int, str])
                return {node: {_STACK: stack} for node, stack in stacks.items()}
            if not begin.startswith(_PICKLE):
                raise _refused(path, "it is neither a pickle nor gzipped JSON")
            content = _PlainUnpickler(io.BytesIO(file.read())).load()
    except (
        pickle.UnpicklingError, msgspec.MsgspecError, zlib.error, EOFError, ValueError, TypeError,
        AttributeError, ImportError, IndexError, KeyError, MemoryError, OverflowError,
    ) as error:  # fmt: skip
        raise _refused(path, str(error) or type(error).__name__) from error
    return _facts(path, content)


def _refused(path: Path, why: str) -> CgtoolError:
    return usage(f"{path}: not PyTorch's graph annotations: {why}", fix=_HOW)


def _facts(path: Path, content: Any) -> dict[int, dict[str, str | int]]:
    if not isinstance(content, dict):
        raise _refused(path, "it is not a dictionary")
    known: dict[int, dict[str, str | int]] = {}
    for node, entry in content.items():
        if not isinstance(node, int) or not isinstance(entry, list | dict):
            raise _refused(path, "it is not {node id: [{...}]}")
        known[node] = {
            key: value
            for annotation in (entry if isinstance(entry, list) else [entry])
            for key, value in _written(annotation)
        }
    return known


def _written(annotation: Any) -> Iterator[tuple[str, str | int]]:
    """Keys and values of an annotation as PyTorch's exporters write them. Until 2.13 it may be
    something else than a dictionary, most likely a name."""
    fields = annotation if isinstance(annotation, dict) else {"annotation": annotation}
    for key, value in fields.items():
        if not isinstance(key, str) or not _is_small(value):
            continue
        if key == "stream" and isinstance(value, str | float | int):
            # A kernel already has a `stream`: the one that it ran on. PyTorch writes an int.
            with contextlib.suppress(ValueError, OverflowError):
                if (stream := int(value)).bit_length() < 64:
                    yield "annotated_stream", stream
        else:
            yield key, str(value)


def _is_small(value: object) -> bool:
    """A nested value, or a number of many digits, may be of any size when it is written out."""
    if isinstance(value, tuple | list):
        return len(value) <= _MOST_ITEMS and all(
            _is_small(item) and not isinstance(item, tuple | list) for item in value
        )
    if isinstance(value, int):
        return value.bit_length() <= 64
    return value is None or isinstance(value, str | float)
