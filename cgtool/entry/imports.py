"""Run the user's file or import the user's module, once, as Python would."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from cgtool.model.failure import CgtoolError, usage, user_code
from cgtool.record.frames import exception_frames

FORMS = "ENTRY is path/to/file.py:name or package.module:name"


def split(spec: str) -> tuple[str, str]:
    """``file.py:name`` to its halves. Raises CgtoolError (exit 2)."""
    if spec.endswith(".cgt"):
        raise usage(f"{spec} is a capture file, not an ENTRY", fix=FORMS)
    target, colon, name = spec.rpartition(":")
    if not colon or not target or not name:
        raise usage(
            f"{spec}: no name to take from it",
            why=FORMS,
            fix=f"say which function or module, as in {spec.rstrip(':') or 'model.py'}:build",
        )
    if not all(piece.isidentifier() for piece in name.split(".")):
        raise usage(f"{spec}: {name!r} is no Python name", fix=FORMS)
    return target, name


def _failed(what: str, error: BaseException) -> NoReturn:
    text = str(error).strip().splitlines()
    kind = type(error).__name__
    raise user_code(
        f"{what} raised {kind}: {text[0]}" if text else f"{what} raised {kind}",
        frames=exception_frames(error),
        phase="load",
    ) from error


def _import_file(path: Path, shown: str) -> ModuleType:
    if path.is_dir():
        raise usage(f"{shown} is a folder, not a Python file", fix=FORMS)
    if not path.exists():
        near = []
        if path.parent.is_dir():
            names = [one.name for one in path.parent.glob("*.py")]
            near = difflib.get_close_matches(path.name, names, 3)
        hint = f"did you mean {', '.join(near)}?" if near else FORMS
        raise usage(f"{shown}: no such file", fix=hint)
    package: list[str] = []
    root = path.parent
    while (root / "__init__.py").exists() and root.name.isidentifier():
        package.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if package and path.stem.isidentifier():
        full = ".".join([*package, path.stem] if path.stem != "__init__" else package)
        return _import_module(full, shown)
    # A file called random.py or torch.py must not stand in for the module of that name.
    name = path.stem
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        name = f"cgtool_entry_{abs(hash(str(path)))}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise usage(f"{shown} is not a Python file", fix=FORMS)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, CgtoolError):
            raise
        _failed(f"importing {shown}", error)
    return module


def _import_module(name: str, shown: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise usage(
                f"{shown}: Python finds no module named {error.name}",
                fix="give the path of the file, or run from the folder that holds the package",
            ) from error
        _failed(f"importing {shown}", error)
    except BaseException as error:
        _failed(f"importing {shown}", error)


def find(spec: str) -> tuple[ModuleType, str, Any]:
    """The user's module, the name, and what it names. Raises CgtoolError."""
    target, name = split(spec)
    if target.endswith(".py") or "/" in target or Path(target).exists():
        module = _import_file(Path(target).absolute(), target)
    else:
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        module = _import_module(target, target)
    value: Any = module
    for piece in name.split("."):
        try:
            value = getattr(value, piece)
        except AttributeError:
            own = getattr(module, "__name__", "")
            public = [
                key
                for key, one in vars(module).items()
                if callable(one)
                and not key.startswith("_")
                and getattr(one, "__module__", own) == own
            ]
            near = difflib.get_close_matches(name, public, 3) or sorted(public)[:10]
            hint = f"it has: {', '.join(near)}" if near else "it defines nothing to call"
            raise usage(f"{target} has no {name!r}", fix=hint) from None
        except Exception as error:
            _failed(f"{target}: reading {name}", error)
    return module, name, value
