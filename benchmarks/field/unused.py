"""Stand-ins for what a package imports at its top and the program does not use.

A program names them itself, and only packages that have no part in its graphs: storage, charts,
tokenizers, kernels of other modules.
"""

import importlib.machinery
import sys
import types


class Anything(type):
    """A class with any attribute, which are classes of the same kind."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__init__": lambda self, *args, **kwargs: None})


class Unused(types.ModuleType):
    """A module with any attribute, to import, to derive from or to call."""

    def __getattr__(self, name):
        return getattr(Anything, "__getattr__")(type(self), name)


def leave_out(*names):
    """Let ``import NAME`` succeed for these packages, which are not installed."""
    for name in names:
        module = Unused(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
