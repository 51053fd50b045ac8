"""Kernels of ops on a GPU, by PyTorch's own table of ops.

``native_functions.yaml``, which is installed with PyTorch (``torchgen``), names the C++ function
behind an op for each backend: ``CPU, CUDA: linalg_eig`` or ``CompositeExplicitAutograd: linspace``.
The ops that such a function calls are those that it calls on a GPU, up to the one that computes:
there PyTorch chooses a function by the device of the tensors (``DispatchStub``). A rehearsal runs
the function on meta tensors, which are not on the CPU and have nothing that computes.

The file also says which ops take tensors of two devices (``device_check``).
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cgtool.torch_compat.dispatch_keys import is_unconvertible
from cgtool.torch_compat.private import (
    MissingPrivateName,
    TorchDispatchMode,
    disable_current_modes,
    has_kernel,
    is_made_of_others,
    key_set_of,
    parse_key,
    pytree,
    redispatcher,
)

_FILE = "packaged/ATen/native/native_functions.yaml"
_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_OP = re.compile(r"^- func: ([\w.]+)\(.*\n((?:(?:  .*)?\n)*)", re.MULTILINE)
_DELEGATE = re.compile(r"^  structured_delegate: ([\w.]+)", re.MULTILINE)
_SHARED = re.compile(r"^    (?=[^:]*\bCPU\b)(?=[^:]*\bCUDA\b)[\w, ]+:", re.MULTILINE)
_ON_GPU = re.compile(r"^  (?:structured_delegate:|  [^:]*\bCUDA\b[^:]*:)", re.MULTILINE)
_CHECK = re.compile(r"^  device_check: NoCheck *(?:# *(\w+))?", re.MULTILINE)
_TAKES_HOST_TENSORS = ("copy_", "index.", "index_put", "_index_put_impl_", "_to_copy")
"""TensorIterator comes after their own copies between devices."""


@functools.cache
def _stanzas() -> dict[str, str]:
    """The entry of each op in the file; empty if it is not installed."""
    torchgen = importlib.util.find_spec("torchgen")
    for folder in (torchgen and torchgen.submodule_search_locations) or ():
        file = Path(folder) / _FILE
        if file.is_file():
            return dict(_OP.findall(file.read_text(encoding="utf-8")))
    return {}


@functools.cache
def shares_kernel(name: str) -> bool:
    """Whether an op, named ``aten::add.Tensor``, runs the same code on the CPU and on a GPU."""
    try:
        if any(has_kernel(name, key) for key in _COMPOSITE) and not has_kernel(name, "CPU"):
            return True
    except (MissingPrivateName, RuntimeError):
        return False
    stanzas = _stanzas()
    stanza = stanzas.get(name.removeprefix("aten::"), "")
    delegate = _DELEGATE.search(stanza)
    if delegate is not None:
        stanza = stanzas.get(delegate.group(1), "")
    return _SHARED.search(stanza) is not None


@functools.cache
def device_check(name: str) -> str | None:
    """The tensors of the host that an op on a GPU refuses: it takes none of them (``all``), or only
    those without dimensions (``iterator``); None if it takes them, or if that is unknown.

    torchgen/dest/register_dispatch_key.py (gen_device_check) and TensorIterator.cpp
    (compute_types). A convolution compares the types of input and weight (Convolution.cpp), and an
    embedding calls ``index_select``.
    """
    op = name.removeprefix("aten::")
    stanza = _stanzas().get(op, "")
    check = _CHECK.search(stanza)
    if op in ("convolution", "embedding"):
        return "all"
    if op.startswith(_TAKES_HOST_TENSORS) or not stanza:
        return None
    if check is not None:
        return "iterator" if check.group(1) == "TensorIterator" else None
    return "all" if _ON_GPU.search(stanza) else None


class InnerCall(NamedTuple):
    """An op that the kernel of another op calls; tensors of the GPU are meta tensors."""

    name: str
    args: tuple[Any, ...]


class _Rehearsal(TorchDispatchMode):
    """Notes the ops that are called, and rehearses those whose code devices share."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[InnerCall] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # As in op_key: else the first call imports torch._dynamo.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        self.calls.append(InnerCall(name, args))
        if shares_kernel(name) or is_made_of_others(name):
            try:
                with self:
                    return redispatcher(func)(_CPU, *args, **(kwargs or {}))
            except RuntimeError as error:
                if not _is_at_end(error):
                    raise
        return func(*args, **(kwargs or {}))


_CPU = key_set_of(parse_key("CPU"))


def _is_at_end(error: Exception) -> bool:
    """Whether a kernel has called all that it calls before it computes."""
    return "DispatchStub" in str(error) or is_unconvertible(error)


def rehearsed(
    op: Any, args: Any, kwargs: Any, is_on_host: Callable[[torch.Tensor], bool]
) -> list[InnerCall] | None:
    """The ops that the shared kernel of an op calls before it computes; None if that is not known.

    Call it where ops are not observed.
    """

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        if is_on_host(tensor):
            return tensor.clone()
        size, stride = tensor.size(), tensor.stride()
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device="meta")

    rehearsal = _Rehearsal()
    try:
        with torch.no_grad(), disable_current_modes():
            args, kwargs = pytree.tree_map_only(torch.Tensor, stand_in, (args, kwargs))
            with rehearsal:
                redispatcher(op)(_CPU, *args, **kwargs)
    except Exception as error:  # whatever a kernel raises that meets meta tensors
        if not _is_at_end(error) and "meta tensors" not in str(error):
            return None
    return rehearsal.calls


def copies_to_device(
    op: Any, args: Any, kwargs: dict[str, Any], is_on_host: Callable[[torch.Tensor], bool]
) -> bool:
    """Whether an op copies a tensor of the host without dimensions to the device. Others read its
    value, or PyTorch hands it to the kernel as a number (TensorIterator.cpp,
    ``allow_cpu_scalars``)."""
    tensors = [
        leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    places = set(map(is_on_host, tensors))
    if len(places) < 2 or not shares_kernel(op.name()):
        return False
    copies = (
        inner.args[:2]
        for inner in rehearsed(op, args, kwargs, is_on_host) or ()
        if inner.name == "aten::copy_"
    )
    return any(
        target.is_meta and not source.is_meta and source.dim() == 0 for target, source in copies
    )
