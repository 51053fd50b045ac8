"""cgtool: see inside PyTorch CUDA graphs."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_MODULES = {
    "CgtoolError": "cgtool.model.failure",
    "capture": "cgtool.in_process",
    "check": "cgtool.api",
    "diff": "cgtool.api",
    "event": "cgtool.recorder.notes",
    "load": "cgtool.api",
    "note": "cgtool.recorder.notes",
    "recording": "cgtool.recorder.block",
    "report": "cgtool.api",
    "verify": "cgtool.in_process",
}
"""Where the names of the Python API are. Their types are in ``__init__.pyi``: an import here would
make every module of the package depend on them."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
