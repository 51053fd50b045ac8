"""Stand-ins for what a package imports at its top and the program does not use.

A program names them itself, and only packages that have no part in its graphs: storage, charts,
tokenizers, kernels of other modules.
"""

import importlib.machinery
import importlib.util
import sys
import types


class Anything(type):
    """A class with any attribute, which are classes of the same kind."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(cls, name, made)
        return made

    def __int__(cls):
        return 0


class Unused(types.ModuleType):
    """A module with any attribute, to import, to derive from or to call."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Anything(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, made)
        return made


def leave_out(*names):
    """Let ``import NAME`` succeed for these packages, which are not installed."""
    for name in names:
        module = Unused(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module


def without_init(package, *subpackages):
    """Let modules of these packages be imported without running the packages' ``__init__``."""
    (root,) = importlib.util.find_spec(package).submodule_search_locations
    for name in ("", *subpackages):
        module = types.ModuleType(f"{package}.{name}".rstrip("."))
        module.__path__ = [f"{root}/{name.replace('.', '/')}"]
        sys.modules[module.__name__] = module
