"""Ops that run the same code on the CPU and on a GPU.

``native_functions.yaml``, which is installed with PyTorch (``torchgen``), names the C++ function
behind an op for each backend: ``CPU, CUDA: linalg_eig`` or ``CompositeExplicitAutograd: linspace``.
The ops that such a function calls are those that it calls on a GPU.
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
