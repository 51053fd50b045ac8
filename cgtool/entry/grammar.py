"""The ``--input`` grammar: text to plain data. No torch, so that the command line can quote it."""

from __future__ import annotations

import re

import msgspec

from cgtool.model.failure import CgtoolError, usage

GRAMMAR = """NAME=DTYPE[SHAPE]?ATTRIBUTE...   for each parameter of the function

  x=float32[4,128]            random normal values
  x=bfloat16[4,128]?grad      requires grad
  ids=int64[4,16]?int<1000    random integers from 0 to 999
  mask=bool[4,16]?ones        all True; also ?zeros
  scale=?scalar=0.5           a Python number, not a tensor
  t=float32[]                 a tensor without dimensions
"""

DTYPES = {
    "float64": "float64", "f64": "float64", "double": "float64",
    "float32": "float32", "f32": "float32", "float": "float32",
    "float16": "float16", "f16": "float16", "half": "float16",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
    "int64": "int64", "i64": "int64", "long": "int64",
    "int32": "int32", "i32": "int32", "int": "int32",
    "int16": "int16", "int8": "int8", "uint8": "uint8",
    "bool": "bool", "complex64": "complex64", "complex128": "complex128",
}  # fmt: skip

_NAME = re.compile(r"[A-Za-z_]\w*|\d+")
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]")
_FLOATING = {"float64", "float32", "float16", "bfloat16", "complex64", "complex128"}
MAX_ELEMENTS = 1 << 36


class InputSpec(msgspec.Struct, frozen=True):
    """One input. ``scalar`` is set for a Python number, the rest for a tensor."""

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    grad: bool = False
    fill: str = "random"
    """``random``, ``zeros`` or ``ones``."""
    below: int | None = None
    scalar: int | float | bool | None = None


def _wrong(text: str, position: int, what: str) -> CgtoolError:
    return usage(
        f"--input {text!r}: {what}, at character {position + 1}",
        why=f"    {text!r}\n    {' ' * (position + 1)}^",
        fix="write it as\n" + GRAMMAR.rstrip(),
    )


def _number(text: str) -> int | float | bool | None:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def parse(text: str) -> InputSpec:
    """Parse one ``--input``. Raises CgtoolError (exit 2) that points at the character."""
    name, equals, rest = text.partition("=")
    if not equals:
        raise _wrong(text, len(text), "expected NAME=")
    if not _NAME.fullmatch(name):
        raise _wrong(text, 0, f"{name!r} is no parameter name")
    at = len(name) + 1
    body, *attributes = rest.split("?")
    tensor = _TENSOR.fullmatch(body)
    if body and tensor is None:
        raise _wrong(text, at, f"{body!r} is no DTYPE[SHAPE]")
    dtype = ""
    shape: tuple[int, ...] = ()
    if tensor is not None:
        dtype = DTYPES.get(tensor["dtype"], "")
        if not dtype:
            raise _wrong(text, at, f"{tensor['dtype']!r} is no dtype of {', '.join(DTYPES)}")
        shape = _shape(text, at + tensor.start("shape"), tensor["shape"])
    values: dict[str, object] = {}
    at += len(body) + 1
    for attribute in attributes:
        _attribute(text, at, attribute, values)
        at += len(attribute) + 1
    if "scalar" in values:
        if body or len(values) > 1:
            raise _wrong(text, len(name) + 1, "?scalar= stands alone, as NAME=?scalar=0.5")
    elif not body:
        raise _wrong(text, len(name) + 1, "expected DTYPE[SHAPE] or ?scalar=NUMBER")
    if values.get("grad") and dtype not in _FLOATING:
        raise _wrong(text, len(name) + 1, f"{dtype} cannot require grad")
    if "below" in values and (dtype in _FLOATING or dtype == "bool"):
        raise _wrong(text, len(name) + 1, f"?int< is for integers, not {dtype}")
    return msgspec.convert({"name": name, "dtype": dtype, "shape": shape, **values}, InputSpec)


def _shape(text: str, at: int, inner: str) -> tuple[int, ...]:
    sizes: list[int] = []
    elements = 1
    if not inner.strip():
        return ()
    for piece in inner.split(","):
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", piece):
            raise _wrong(text, at, f"{piece.strip()!r} is no size")
        sizes.append(int(piece))
        elements *= max(1, sizes[-1])
        at += len(piece) + 1
    if elements > MAX_ELEMENTS:
        raise _wrong(text, at, f"{elements} elements are too many")
    return tuple(sizes)


def _attribute(text: str, at: int, attribute: str, values: dict[str, object]) -> None:
    if attribute == "grad":
        values["grad"] = True
    elif attribute in ("zeros", "ones"):
        values["fill"] = attribute
    elif attribute.startswith("int<"):
        if not re.fullmatch(r"[1-9][0-9]{0,17}", attribute[4:]):
            raise _wrong(text, at + 4, f"{attribute[4:]!r} is no positive whole number")
        values["below"] = int(attribute[4:])
    elif attribute.startswith("scalar="):
        number = _number(attribute[7:])
        if number is None:
            raise _wrong(text, at + 7, f"{attribute[7:]!r} is no number")
        values["scalar"] = number
    else:
        raise _wrong(text, at, f"{attribute!r} is none of grad, zeros, ones, int<N, scalar=NUMBER")
