"""ENTRY to Workload: the user's file or module is imported once, as Python would, and everything
that the entry point is given is on the device of the capture."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.abc
import importlib.util
import random
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from cgtool.model.capture import Frame
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.files import is_file
from cgtool.observe.annotations import install as install_annotations
from cgtool.observe.frames import call_user
from cgtool.program.boundary import load_error, own_fault
from cgtool.program.classify import Classifier
from cgtool.program.spec import FORMS, EntrySpec, parse_entry, parse_inputs
from cgtool.program.workload import Workload


def load(
    spec: str,
    *,
    device: str,
    inputs: tuple[str, ...] = (),
    seed: int | None = None,
    arguments: tuple[str, ...] = (),
    refuse: bool = True,
) -> Workload:
    """Load an entry point on ``device`` (``cpu``, ``cuda``, ``cuda:1``). From now on ``sys.argv``
    is that of ``python FILE ARGUMENTS``: the code may read it in any call. Without ``refuse``, a
    workload that cannot be captured is returned with its ``refusals``.

    Raises CgtoolError: exit 2 for a wrong ENTRY or --input, 4 for what the user's code raises or
    returns, with the user's frames. KeyboardInterrupt passes.
    """
    entry = parse_entry(spec)
    input_specs = parse_inputs(inputs)
    seed_all(seed)
    install_annotations()
    sys.argv = [entry.target, *arguments]
    module, owner, value = find_entry(entry)
    classifier = Classifier(spec, entry.name, module, owner, device, input_specs)
    try:
        workload = classifier.classify(value)
    except CgtoolError:
        raise
    except Exception as error:
        # Raised by a __len__ or a property of the user's that was read to classify the object.
        if own_fault(error):
            raise
        raise load_error(spec, error, otherwise=classifier.frames) from error
    if refuse and workload.refusals:
        raise workload.refusals[0]
    return workload


def seed_all(seed: int | None) -> None:
    """Seed Python, NumPy when it is loaded, and PyTorch on every device; None leaves them alone.

    Raises CgtoolError (exit 2) for a number that torch.manual_seed does not accept.
    """
    if seed is None:
        return
    try:
        torch.manual_seed(seed)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise usage(f"--seed {seed} is not a seed that torch.manual_seed accepts") from error
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


# --- imports


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one top-level module where Python would not."""

    def __init__(self, name: str, find: Callable[[], ModuleSpec | None]) -> None:
        self._name, self._find = name, find

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self._find() if fullname == self._name and path is None else None


def _is_installed(name: str) -> bool:
    """True for a top-level module of the standard library or of an installed package."""
    if name in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return name in sys.modules
    if spec is None:
        return False
    roots = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    location = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    return any(location.startswith(f"{root}/") for root in roots)


def _find_installed(name: str, folder: Path) -> ModuleSpec | None:
    """Makes ``import random`` find the installed module when the user's file is ``random.py``: its
    folder is first on ``sys.path``, and a library that imports ``random`` later would run it."""
    others = [each for each in sys.path if Path(each).absolute() != folder]
    return PathFinder.find_spec(name, others)


def _own_name(path: Path) -> str:
    """A module name for a file whose stem is taken or not a name; the same in every run."""
    stem = re.sub(r"\W", "_", path.stem)
    return f"cgtool_entry_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _first_on_path(folder: Path) -> None:
    if not sys.path or sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))


def import_root(spec: EntrySpec) -> Path:
    """Where an entry's own modules are: next to its file, or above its package."""
    if not spec.is_file:
        return Path.cwd()
    folder = Path(spec.target).resolve().parent
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        folder = folder.parent
    return folder


def _import_file(spec: EntrySpec) -> ModuleType:
    # Resolved, as Python does for a script that is a link: the siblings of the real file count.
    path, root = Path(spec.target).resolve(), import_root(spec)
    package = path.parent.relative_to(root).parts
    if package and path.suffix == ".py" and path.stem.isidentifier():
        return _import_from_package(spec, path, root, package)
    stem, own = path.stem, _own_name(path)
    for name in (stem, own):
        known = sys.modules.get(name)
        file = getattr(known, "__file__", None)
        if known is not None and isinstance(file, str) and Path(file).resolve() == path:
            return known
    name = stem
    if not stem.isidentifier() or stem in sys.modules or _is_installed(stem):
        name = own
        if _is_installed(stem):
            sys.meta_path.insert(0, _Finder(stem, partial(_find_installed, stem, path.parent)))
    _first_on_path(path.parent)
    loader = _FromSource(name, str(path))
    module_spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert module_spec is not None, "a loader that is given is taken"
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        call_user(loader.exec_module, module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        raise load_error(
            f"importing {spec.target}", error, otherwise=(Frame(str(path), 1, "<module>"),)
        ) from error
    return module


class _FromSource(SourceFileLoader):
    """Compiles the file as it is now: a cached one of the same second and size may be older."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_from_package(
    spec: EntrySpec, path: Path, root: Path, package: Sequence[str]
) -> ModuleType:
    """A file whose folder has ``__init__.py`` is that package's module: relative imports work."""
    _first_on_path(root)
    if str(path.parent) not in sys.path:
        # Last, for files that are also run as scripts and import their siblings by bare name.
        sys.path.append(str(path.parent))
    top = package[0]
    known = sys.modules.get(top)
    folders = [str(Path(folder).resolve()) for folder in getattr(known, "__path__", ())]
    if known is not None and str(root / top) not in folders:
        top = _package_under_own_name(root / top)
    names = [top, *package[1:]]
    if path.stem != "__init__":
        names.append(path.stem)
    return _import_module(".".join(names), spec)


def _package_under_own_name(folder: Path) -> str:
    """For a package whose name another module already has (``code``, ``test``)."""
    name = _own_name(folder)
    if name not in sys.modules:
        # Only the name is set here; __init__ runs when the module in it is imported.
        module_spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert module_spec is not None, "__init__.py was seen"
        sys.meta_path.insert(0, _Finder(name, lambda: module_spec))
    return name


def _import_module(name: str, spec: EntrySpec) -> ModuleType:
    try:
        return call_user(importlib.import_module, name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            file = Path(*name.split(".")).with_suffix(".py")
            raise usage(
                f"{spec.target}: Python finds no module named {missing}",
                fix=f"did you mean {file}:{spec.name}?"
                if is_file(file)
                else "give the path of the file, or run from the folder that contains the package",
            ) from error
        raise load_error(f"importing {spec.target}", error) from error


def _public(owner: Any) -> list[str]:
    """The names in a module or class that may be entry points."""
    own = getattr(owner, "__name__", "")
    return sorted(
        key
        for key, value in vars(owner).items()
        if callable(value)
        and not key.startswith("_")
        and (
            not isinstance(owner, ModuleType)
            or not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType)
            or getattr(value, "__module__", own) == own
        )
    )


def _no_such_name(spec: EntrySpec, owner: Any, piece: str, path: Sequence[str]) -> CgtoolError:
    names = _public(owner) if hasattr(owner, "__dict__") else []
    near = difflib.get_close_matches(piece, names, 3)
    prefix = "".join(f"{name}." for name in path)
    if near:
        fix = f"did you mean {' or '.join(prefix + name for name in near)}?"
    elif names:
        fix = f"it has {', '.join(prefix + name for name in names[:10])}"
    else:
        fix = "it defines nothing that can be called"
    return usage(f"{spec.target} has no {prefix}{piece}", fix=fix)


def find_entry(spec: EntrySpec) -> tuple[ModuleType, Any, Any]:
    """The user's module, the object that has the last name of the ENTRY, and that name's value.

    Raises CgtoolError: exit 2 when there is no such module or name, 4 for what its code raises.
    """
    if spec.is_file:
        module = _import_file(spec)
    else:
        if not all(spec.target.split(".")):
            raise usage(f"{spec.target} is not a module name", fix=FORMS)
        here = str(Path.cwd())
        if "" not in sys.path and here not in sys.path:
            sys.path.insert(0, here)
        module = _import_module(spec.target, spec)
    pieces = spec.name.split(".")
    owner: Any = module
    value: Any = module
    for index, piece in enumerate(pieces):
        owner = value
        try:
            value = call_user(getattr, owner, piece)
        except AttributeError:
            raise _no_such_name(spec, owner, piece, pieces[:index]) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise load_error(f"{spec.target}: reading {spec.name}", error) from error
    return module, owner, value
