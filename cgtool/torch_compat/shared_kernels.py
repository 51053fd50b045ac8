"""What PyTorch's table of ops says of their kernels on a GPU.

``native_functions.yaml``, which is installed with PyTorch (``torchgen``), names the C++ function
behind an op for each backend: ``CPU, CUDA: linalg_eig`` or ``CompositeExplicitAutograd: linspace``.
The ops that such a function calls are those that it calls on a GPU. It also says which ops take
tensors of two devices (``device_check``).
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

from cgtool.torch_compat.private import MissingPrivateName, has_kernel

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
    """What the file says of each op; empty if it is not installed."""
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
    """What an op on a GPU does with tensors of the host: it takes none of them (``all``), or only
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
