"""Stand-ins for what a package imports at its top and the program does not use.

A program names them itself, and only what has no part in its graphs: storage, charts, export,
compiled kernels of other modules.
"""

import importlib.machinery
import importlib.util
import sys
import types


class Anything(type):
    """A class whose attributes are such classes; to import, to derive from or to call."""

    def __getattr__(cls, name):
        return attribute(cls, name)

    def __int__(cls):
        return 0


def attribute(owner, name):
    if name.startswith("__"):
        raise AttributeError(name)
    made = Anything(name, (), {"__init__": lambda self, *args, **kwargs: None})
    setattr(owner, name, made)
    return made


class Unused(types.ModuleType):
    """A module with any attribute."""

    __path__ = ()

    def __getattr__(self, name):
        return attribute(self, name)


class LeftOut:
    """Finds and loads the stand-ins, and their submodules."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{each}.") for each in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Unused(spec.name)

    def exec_module(self, module):
        pass


def leave_out(*names):
    """Let ``import NAME`` succeed for these packages and modules, which are not there."""
    sys.meta_path.insert(0, LeftOut(names))


def without_init(package, *subpackages):
    """Let modules of these packages be imported without running the packages' ``__init__``."""
    (root,) = importlib.util.find_spec(package).submodule_search_locations
    for name in ("", *subpackages):
        module = types.ModuleType(f"{package}.{name}".rstrip("."))
        module.__path__ = [f"{root}/{name.replace('.', '/')}"]
        sys.modules[module.__name__] = module
