"""The command-line texts of an ENTRY and of ``--input``, as plain data. No torch, so that the
command line can check and quote them."""

from __future__ import annotations

import difflib
import keyword
import math
import os
import re
from pathlib import Path
from typing import NoReturn

import msgspec

from cgtool.model import files
from cgtool.model.failure import CgtoolError, usage

FORMS = "ENTRY is path/to/file.py:name or package.module:name"


_FACTORY = re.compile(r"^def (build(?=\(\))|[A-Za-z]\w*(?=\(device\b[^,)]*\)))", re.MULTILINE)
"""A function at the top of a file that takes a device; one called `build` may take nothing."""


class EntrySpec(msgspec.Struct, frozen=True):
    """The two halves of an ENTRY; ``is_file``: ``target`` is a path, not a module's dotted name."""

    target: str
    name: str
    is_file: bool


def _is_dotted(text: str) -> bool:
    return all(piece.isidentifier() for piece in text.split("."))


def parse_entry(text: str) -> EntrySpec:
    """Split ``path/to/file.py:name`` or ``package.module:name``. Nothing is imported.

    Raises CgtoolError (exit 2) when it is not an ENTRY, or the file does not exist.
    """
    for file in (text, text.rpartition(":")[0]):
        if file.endswith(".cgt"):
            raise usage(
                f"{text} is a capture file, not an ENTRY",
                why=FORMS,
                fix=f"cgtool show {file} prints what was saved in it",
            )
    target, colon, name = text.rpartition(":")
    if not colon or not target or not name:
        raise _no_name(text.removesuffix(":"))
    if not _is_dotted(name):
        raise usage(f"{text}: {name!r} is not a Python name", fix=FORMS)
    is_file = os.sep in target or not _is_dotted(target) or target.endswith(".py")
    is_file = is_file or files.is_file(Path(target))
    if is_file:
        _check_file(target, name)
    elif files.is_dir(Path(target)) and not (Path(target) / "__init__.py").exists():
        raise _folder(target, name)
    return EntrySpec(target, name, is_file)


def _no_name(target: str) -> CgtoolError:
    """The error for an ENTRY without a name. Its fix lists the factories of the file or folder,
    which are not run; a file without one is probably a script."""
    if not target or target.startswith(":"):
        return usage(f"{target or ':'}: no file or module before the colon", fix=FORMS)
    if files.is_dir(Path(target)):
        return _folder(target)
    is_module = _is_dotted(target) and os.sep not in target and not target.endswith(".py")
    if is_module and not files.is_file(Path(target)):
        return usage(
            f"{target}: no such file, and an ENTRY also names a function in a module",
            why=FORMS,
            fix=f"write {target}:NAME if it is a module",
        )
    _check_file(target, "")
    fix = (
        f"`cgtool check {target}` and `cgtool run {target}` take the script as it is; to capture a "
        "part of it, write a function in it that returns the part: `def build(device): return "
        f"function, arguments`, and name it: {target}:build"
    )
    if names := _factories(Path(target)):
        fix = f"write {' or '.join(f'{target}:{name}' for name in names[:5])}"
    message = f"{target}: an ENTRY also names a function or a module in it"
    return usage(message, why=FORMS, fix=fix)


def _factories(file: Path) -> list[str]:
    """The factories at the top of a file, `build` first."""
    try:
        # os.path answers False where pathlib raises: a name too long, a NUL, no permission.
        source = file.read_text("utf-8", "replace") if files.is_file(file) else ""
    except (OSError, ValueError, MemoryError):
        source = ""
    return sorted(_FACTORY.findall(source), key=lambda name: bool(name != "build"))


def _folder(target: str, name: str | None = None) -> CgtoolError:
    near = [
        f"{file}:{each}"
        for file in sorted(Path(target).glob("*.py"))
        for each in ([name] if name else _factories(file))
    ]
    return usage(
        f"{target} is a folder, not a Python file",
        fix=f"write {' or '.join(near[:5])}" if near else FORMS,
    )


def _no_file(target: str, name: str = "") -> CgtoolError:
    parent = Path(target).parent
    siblings = parent.glob("*.py") if os.path.isdir(parent) else ()  # noqa: PTH112
    near = difflib.get_close_matches(Path(target).name, [file.name for file in siblings], 3)
    hints = [f"{parent / file}{name and f':{name}'}" for file in near]
    otherwise = FORMS if name else "give its path from the current folder"
    fix = f"did you mean {' or '.join(hints)}?" if hints else otherwise
    return usage(f"{target}: no such file", fix=fix)


def _check_file(target: str, name: str) -> None:
    if os.path.isdir(target):  # noqa: PTH112
        raise _folder(target, name)
    if not os.path.exists(target):  # noqa: PTH110
        raise _no_file(target, name)
    suffix = Path(target).suffix
    if suffix not in (".py", ""):
        fix = "export it first: jupyter nbconvert --to script" if suffix == ".ipynb" else FORMS
        raise usage(f"{target} is not a Python file", fix=fix)
    if not os.access(target, os.R_OK):
        raise usage(f"{target}: no permission to read it")


# --- inputs

GRAMMAR = """NAME=DTYPE[SHAPE]?ATTRIBUTE?ATTRIBUTE...   one for each parameter

  x=float32[4,128]            random normal values
  x=bfloat16[4,128]?grad      requires grad
  ids=int64[4,16]?int<1000    random integers from 0 to 999
  mask=bool[4,16]?ones        all True; also ?zeros
  scale=?scalar=0.5           a Python number, not a tensor
  t=float32[]                 a tensor without dimensions
  0=float32[4,128]            the first argument, by position
"""

DTYPES = {
    "float64": "float64", "f64": "float64", "double": "float64",
    "float32": "float32", "f32": "float32", "float": "float32",
    "float16": "float16", "f16": "float16", "half": "float16",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
    "int64": "int64", "i64": "int64", "long": "int64",
    "int32": "int32", "i32": "int32", "int": "int32",
    "int16": "int16", "i16": "int16", "short": "int16",
    "int8": "int8", "i8": "int8", "uint8": "uint8", "u8": "uint8",
    "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "bool": "bool",
    "complex32": "complex32", "chalf": "complex32",
    "complex64": "complex64", "cfloat": "complex64",
    "complex128": "complex128", "cdouble": "complex128",
}  # fmt: skip
"""PyTorch's dtype names and their common short forms, to PyTorch's names."""

_TENSOR = re.compile(r"(?P<dtype>\w*)\[(?P<shape>[^\]]*)\]")
_NUMBER = re.compile(r"[+-]?(\d{1,100}(\.\d{0,100})?|\.\d{1,100})([eE][+-]?\d{1,4})?|[+-]?inf|nan")
_INTEGER_BITS = {
    "int64": 63, "int32": 31, "int16": 15, "int8": 7,
    "uint64": 63, "uint32": 32, "uint16": 16, "uint8": 8,
}  # fmt: skip
"""``?int<N`` may reach 2 to this. uint64 is filled from int64, which random numbers come in."""
MAX_ELEMENTS = 1 << 40


class InputSpec(msgspec.Struct, frozen=True):
    """One input. ``scalar`` is set for a Python number, the rest for a tensor."""

    name: str
    """A parameter's name, or its position from 0 in digits."""
    dtype: str = ""
    """PyTorch's name, without ``torch.``."""
    shape: tuple[int, ...] = ()
    grad: bool = False
    fill: str = "random"
    """``random`` (normal for floating dtypes, integers otherwise), ``zeros`` or ``ones``."""
    below: int | None = None
    """Random integers are below this."""
    scalar: int | float | bool | None = None


def is_floating(dtype: str) -> bool:
    """True for dtypes that can require grad."""
    return dtype.startswith(("float", "bfloat", "complex"))


def input_text(spec: InputSpec) -> str:
    """The text that ``parse_input`` reads back as the same spec."""
    if spec.scalar is not None:
        return f"{spec.name}=?scalar={spec.scalar!r}"
    text = f"{spec.name}={spec.dtype}[{','.join(map(str, spec.shape))}]"
    if spec.fill != "random":
        text += f"?{spec.fill}"
    if spec.below is not None:
        text += f"?int<{spec.below}"
    return text + ("?grad" if spec.grad else "")


class _Reader:
    """Parses one text; every error points at a character of it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: dict[str, object] = {}

    def wrong(self, position: int, why: str) -> NoReturn:
        # The text as Python would quote it: the caret must also point at an escaped character.
        column = len(repr(self.text[:position])) - 1
        raise usage(
            f"--input {self.text!r}: {why}",
            why=f"at character {position + 1}:\n{self.text!r}\n{' ' * column}^",
            fix="write it as\n" + GRAMMAR.rstrip(),
        )

    def read(self) -> InputSpec:
        name, equals, rest = self.text.partition("=")
        if not equals:
            self.wrong(len(self.text), "expected NAME=")
        is_position = re.fullmatch(r"[0-9]{1,3}", name) is not None
        if not (is_position or name.isidentifier()) or keyword.iskeyword(name):
            self.wrong(0, f"{name!r} is not a parameter name")
        start = len(name) + 1
        body, *attributes = rest.split("?")
        dtype, shape = self._tensor(start, body) if body else ("", [])
        at = start + len(body) + 1
        for attribute in attributes:
            self._attribute(at, attribute, dtype)
            at += len(attribute) + 1
        if not body and "scalar" not in self.values:
            self.wrong(start, "expected DTYPE[SHAPE] or ?scalar=NUMBER")
        return msgspec.convert(
            {"name": name, "dtype": dtype, "shape": shape, **self.values}, InputSpec
        )

    def _tensor(self, at: int, body: str) -> tuple[str, list[int]]:
        tensor = _TENSOR.fullmatch(body)
        if tensor is None:
            at += body.index("]") + 1 if "]" in body and "[" in body else 0
            self.wrong(at, f"{body!r} is not DTYPE[SHAPE]")
        dtype = DTYPES.get(tensor["dtype"], "")
        if not dtype:
            self.wrong(at, f"{tensor['dtype']!r} is not a dtype; use one of {', '.join(DTYPES)}")
        at += tensor.start("shape")
        sizes: list[int] = []
        for piece in tensor["shape"].split(",") if tensor["shape"].strip() else ():
            if not re.fullmatch(r"\s*[0-9]{1,18}\s*", piece):
                self.wrong(at, f"{piece.strip()!r} is not a size")
            sizes.append(int(piece))
            if math.prod(max(1, size) for size in sizes) > MAX_ELEMENTS:
                self.wrong(at, f"more than {MAX_ELEMENTS} elements")
            at += len(piece) + 1
        return dtype, sizes

    def _set(self, at: int, field: str, value: object) -> None:
        if field in self.values:
            self.wrong(at, "an attribute that contradicts or repeats another")
        self.values[field] = value

    def _attribute(self, at: int, attribute: str, dtype: str) -> None:
        name, scalar, number = attribute.partition("scalar=")
        if not name and scalar:
            if dtype or self.values:
                self.wrong(at, "?scalar= cannot be combined: NAME=?scalar=0.5")
            self._set(at, "scalar", self._number(at + len(scalar), number))
            return
        if not dtype:
            wrong = "needs DTYPE[SHAPE] before it"
            if "scalar" in self.values:
                wrong = "cannot be combined with ?scalar"
            self.wrong(at, f"?{attribute} {wrong}" if name else "expected DTYPE[SHAPE]")
        if attribute == "grad":
            if not is_floating(dtype):
                self.wrong(at, f"{dtype} cannot require grad")
            self._set(at, "grad", True)
        elif attribute in ("zeros", "ones"):
            if "below" in self.values:
                self.wrong(at, f"?{attribute} contradicts ?int<")
            self._set(at, "fill", attribute)
        elif attribute.startswith("int<"):
            self._below(at, attribute[4:], dtype)
        else:
            names = "?grad, ?zeros, ?ones, ?int<N, ?scalar=NUMBER"
            self.wrong(at, f"?{attribute} is not one of {names}")

    def _below(self, at: int, digits: str, dtype: str) -> None:
        if dtype not in _INTEGER_BITS:
            self.wrong(at, f"?int< is for integers, not {dtype}")
        if "fill" in self.values:
            self.wrong(at, f"?int< contradicts ?{self.values['fill']}")
        if not re.fullmatch(r"[1-9][0-9]{0,19}", digits):
            self.wrong(at + 4, f"{digits!r} is not a positive integer")
        if int(digits) > 1 << _INTEGER_BITS[dtype] or int(digits) >= 1 << 63:
            self.wrong(at + 4, f"{dtype} does not hold integers up to {digits}")
        self._set(at, "below", int(digits))

    def _number(self, at: int, text: str) -> int | float | bool:
        if text in ("True", "False"):
            return text == "True"
        if not _NUMBER.fullmatch(text):
            self.wrong(at, f"{text!r} is not a number, True or False")
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def parse_input(text: str) -> InputSpec:
    """Parse one ``--input``. Raises CgtoolError (exit 2), which points at the character."""
    return _Reader(text).read()


def parse_inputs(texts: tuple[str, ...]) -> tuple[InputSpec, ...]:
    """Parse every ``--input``: names are unique, positions are 0, 1, 2 without a gap.

    Raises CgtoolError (exit 2).
    """
    specs = tuple(parse_input(text) for text in texts)
    names = [int(spec.name) if spec.name.isdigit() else spec.name for spec in specs]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise usage(f"--input {texts[index]!r}: {name} is given twice")
    positions = sorted(name for name in names if isinstance(name, int))
    if positions != list(range(len(positions))):
        missing = next(i for i in range(len(positions)) if i not in positions)
        raise usage(
            f"--input gives position {positions[-1]} but not {missing}",
            fix="positions start at 0, without gaps; or use the parameters' names",
        )
    return specs
