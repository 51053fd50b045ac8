"""Kernel names for people: demangled, and short enough for a picture.

Rules of the short name, in order: PyTorch's native kernels keep the kernel and the functor that
they apply (``vectorized_elementwise_kernel<FillFunctor>``); other templates keep their own name;
namespaces, types and argument lists go; names with no C++ in them (Triton, cuBLAS' assembly
kernels) stay, cut in the middle when they are long.
"""

from __future__ import annotations

import re
from functools import cache

import pycxxfilt

MAX_SHORT = 44

_FUNCTOR = re.compile(
    r"\b((?!Array|function|OffsetCalculator|gpu_kernel)[A-Za-z]\w*?(?:Functor|Op|Ops|_functor"
    r"|_kernel_cuda|_kernel_impl|Softmax\w*Epilogue)|\w+_cuda(?=\())"
)
_GENERIC = {"TensorIteratorBase", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "ReduceOp"}


@cache
def demangle(name: str) -> str:
    """The C++ name, or the name itself when it is not mangled."""
    if not name.startswith("_Z"):
        return name
    try:
        return str(pycxxfilt.demangle(name))
    except ValueError:
        return name


def _without_brackets(text: str) -> str:
    """Drop everything between angle brackets and parentheses."""
    kept: list[str] = []
    depth = 0
    for character in text:
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    return "".join(kept)


def _cut(name: str) -> str:
    if len(name) <= MAX_SHORT:
        return name
    half = (MAX_SHORT - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


@cache
def short_kernel(name: str) -> str:
    """A name of at most 44 characters that still tells kernels apart."""
    full = demangle(name)
    if full == name and not name.startswith("_Z"):
        return _cut(name)
    body = full.replace("(anonymous namespace)::", "").replace("::operator()", "")
    own = _without_brackets(body).strip().split()[-1].split("::")[-1]
    if own in ("Kernel", "Kernel2", "device_kernel"):
        inside = re.search(r"\b(cutlass_\w+|\w*gemm\w*)", body)
        return _cut(inside.group(1) if inside else own)
    specific = [one for one in _FUNCTOR.findall(body.partition("<")[2]) if one not in _GENERIC]
    if specific and "native" in full:
        functor = next((one for one in specific if one != own), specific[0])
        return _cut(f"{own}<{functor}>")
    return _cut(own)
