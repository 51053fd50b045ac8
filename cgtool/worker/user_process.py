"""Guards the worker process against the user's code, which may end it, patch it, or warn in it.

A process that has ended leaves an exit code or a signal, and no line. So the calls that end it from
Python are wrapped and announce their line first, and faulthandler writes the stack for signals.

User code may also replace ``torch.cuda`` or ``builtins.len``; cgtool then fails without being at
fault. So the originals are kept, restored before the answer is written, and the answer names what
was replaced.
"""

from __future__ import annotations

import builtins
import faulthandler
import importlib
import linecache
import os
import re
import signal
import sys
import threading
import time  # noqa: F401 - this module and the next one are kept below, by name
import traceback  # noqa: F401
import warnings
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, CodeType, MethodDescriptorType, ModuleType
from typing import Any, NamedTuple

from cgtool.analysis.units import names_text
from cgtool.model.capture import Frame, Frames
from cgtool.model.jobs import Ending
from cgtool.observe.frames import (
    chain_of,
    frame_of,
    frames_of,
    frames_of_other_threads,
    is_internal,
    is_internal_file,
)
from cgtool.observe.refused_backward import is_refused

_DEADLY = (
    "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR2", "SIGXCPU",
    "SIGXFSZ", "SIGTRAP", "SIGSYS",
)  # fmt: skip
"""Signals that end a process without a handler, and that faulthandler does not handle itself."""


def prepare(stack_file: str, announce: Callable[[Ending], None]) -> Originals:
    """Prepare this process for the user's code: ``announce`` is called before a call of Python's
    ends it, ``stack_file`` gets the Python stack if a signal does, and what the result keeps can be
    restored."""
    _write_stacks(stack_file)
    originals = Originals()
    _announce_endings(announce)
    _warn_at_users_line()
    _skip_breakpoints()
    return originals


def _write_stacks(path: str) -> None:
    """Write the Python stack to a file at SIGUSR1, and at every signal that ends the process."""
    # Opened by name: the user's code may close any descriptor.
    file = Path(path).open("w")  # noqa: SIM115
    faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    faulthandler.enable(file, all_threads=False)
    for name in _DEADLY:
        number = getattr(signal, name, None)
        if number is not None:
            # Chained: after the stack is written, the signal has its usual effect.
            faulthandler.register(number, file, all_threads=False, chain=True)


def _announce_endings(announce: Callable[[Ending], None]) -> None:
    """From now on ``announce`` is called before every call of Python's that ends this process, with
    the frames of its thread; with those of the main thread where it has none of the user's."""
    home = os.getpid()

    def wrap(owner: Any, name: str, ending_of: Callable[..., tuple[int, str] | None]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            # Child processes that the user's code forks may end without notice.
            ending = ending_of(*args, **kwargs) if os.getpid() == home else None
            if ending is not None:
                chain = chain_of(sys._getframe(1))
                if not chain:
                    main = threading.main_thread().ident
                    chain = chain_of(frames_of_other_threads().get(main or 0))
                announce(Ending(*ending, frames_of(chain)))
            return original(*args, **kwargs)

        call.__name__, call.__qualname__, call.__doc__ = name, name, original.__doc__
        setattr(owner, name, call)

    def exits(status: Any = 0, *_: Any) -> tuple[int, str] | None:
        return (status & 0xFF, f"called os._exit({status})") if isinstance(status, int) else None

    def executes(path: Any = "", *_: Any, **__: Any) -> tuple[int, str]:
        return 0, f"replaced its own process with {path} (os.exec)"

    def sends(function: str) -> Callable[..., tuple[int, str] | None]:
        def ending_of(*args: Any) -> tuple[int, str] | None:
            number, *target = args[::-1]
            if not isinstance(number, int) or number <= 0:
                return None
            is_own = not target or target[0] in (0, home, -home, threading.get_ident())
            sentence = f"sent itself {signal_name(number)} with {function}"
            return (-number, sentence) if is_own else None

        return ending_of

    wrap(os, "_exit", exits)
    wrap(os, "execv", executes)
    wrap(os, "execve", executes)
    wrap(os, "kill", sends("os.kill"))
    wrap(os, "killpg", sends("os.killpg"))
    wrap(signal, "raise_signal", sends("signal.raise_signal"))
    wrap(signal, "pthread_kill", sends("signal.pthread_kill"))


def _skip_breakpoints() -> None:
    """From now on ``breakpoint()`` writes once for each line that it is skipped: a debugger has no
    standard input in this process. A debugger that PYTHONBREAKPOINT names needs none."""
    skipped: set[tuple[str, int]] = set()

    def skip(*_args: Any, **_kwargs: Any) -> None:
        frame = sys._getframe(1)
        place = frame.f_code.co_filename, frame.f_lineno
        if place not in skipped and sys.stderr is not None:
            skipped.add(place)
            sys.stderr.write(
                f"{place[0]}:{place[1]}: breakpoint() is skipped: this process has no "
                "standard input; PYTHONBREAKPOINT can name a remote debugger\n"
            )

    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = skip


def signal_name(number: int) -> str:
    """``SIGTERM``; ``signal 40`` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- what the user's code replaced

_MISSING = object()
_BUILTINS = vars(builtins)
_LIBRARIES = ("torch", "cgtool", "msgspec", *sys.stdlib_module_names)


class Replaced(NamedTuple):
    """One name that the user's code gave another value."""

    name: str
    """``torch.cuda``."""
    value: Any
    """The new value; ``_MISSING`` when the name was deleted."""

    @property
    def is_broken(self) -> bool:
        """Deleted, or None: nothing that could be called or read."""
        return self.value is _MISSING or self.value is None


class Originals:
    """A copy of the names of modules and classes that cgtool and PyTorch depend on."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, Any, dict[str, Any]]] = []
        self._modules: dict[str, ModuleType] = {}
        self._builtins = dict(_BUILTINS)
        self.keep("builtins", "os", "sys", "time", "threading", "traceback", "linecache")

    def keep(self, *names: str) -> None:
        """Keep the present attributes of these modules, or classes in them, and all imports."""
        for name in names:
            module, _, attribute = name.rpartition(".")
            owner = sys.modules.get(name) or vars(importlib.import_module(module))[attribute]
            self._kept.append((name, owner, dict(vars(owner))))
        self._modules = dict(sys.modules)

    def restore(self) -> list[Replaced]:
        """Restore everything; returns what the user's code had replaced."""
        current = dict(_BUILTINS)
        # No builtin may be called before this line.
        _BUILTINS.update(self._builtins)
        replaced = [
            Replaced(f"builtins.{name}", current.get(name, _MISSING))
            for name, value in self._builtins.items()
            if current.get(name, _MISSING) is not value
        ]
        modules = sys.modules
        for name, module in self._modules.items():
            if modules.get(name) is None and name.partition(".")[0] in _LIBRARIES:
                replaced.append(Replaced(f"sys.modules[{name!r}]", modules.get(name, _MISSING)))
                modules[name] = module
        for label, owner, names in self._kept:
            for name, value in names.items():
                new = vars(owner).get(name, _MISSING)
                matters = callable(value) or isinstance(value, ModuleType | property)
                # Much of sys is None at times: ps1, last_value, the standard streams.
                is_lost = label != "sys" and value is not None and (new is None or new is _MISSING)
                if new is not value and (matters or is_lost):
                    setattr(owner, name, value)
                    replaced.append(Replaced(f"{label}.{name}", new))
            for name in set(vars(owner)) - set(names):
                # A new method of the class hides the inherited one.
                if isinstance(owner, type) and hasattr(super(owner, owner), name):
                    replaced.append(Replaced(f"{label}.{name}", vars(owner)[name]))
                    delattr(owner, name)
        return [each for each in replaced if _is_users(each.value)]


def _is_users(value: Any) -> bool:
    """False for what a library puts there itself while it is used."""
    if value is None or value is _MISSING:
        return True
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        # PyTorch wraps some of its functions in code of typing_extensions.
        is_of_pytorch = str(getattr(value, "__module__", "")).startswith("torch.")
        return not is_internal(code) and not (is_of_pytorch and "-packages/" in code.co_filename)
    if isinstance(value, BuiltinFunctionType | MethodDescriptorType):
        # A C function, which no user writes: whoever replaced it has restored it.
        return False
    origin = getattr(value, "__module__", None) or type(value).__module__
    root = str(origin).partition(".")[0]
    return root == "builtins" or root not in _LIBRARIES


def describe_replaced(replaced: list[Replaced]) -> str:
    """``torch.cuda, builtins.len and 3 more``."""
    return names_text([each.name for each in replaced], 3)


def frames_of_replaced(replaced: list[Replaced]) -> Frames:
    """The lines of the user's files that assign these names, as attributes, or delete them; if
    there are none, the functions that were assigned."""
    names = "|".join({re.escape(each.name.rpartition(".")[2]) for each in replaced})
    changes = re.compile(rf"\s*(del\s+)?[\w.]+\.({names})\s*(=[^=]|$)")
    frames = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        if "-packages/" in file or is_internal_file(file):
            continue
        frames += [
            Frame(file, number, "<module>")
            for number, line in enumerate(linecache.getlines(file), 1)
            if changes.match(line)
        ]
    if not frames:
        codes = [getattr(each.value, "__code__", None) for each in replaced]
        frames = [
            Frame(code.co_filename, code.co_firstlineno, code.co_qualname)
            for code in codes
            if isinstance(code, CodeType)
        ]
    return tuple(frames[:3])


# --- warnings

_OWN_FOLDER = str(Path(__file__).parent.parent) + "/"
_FORWARD_TRACE = "Traceback of forward call"
_TRACE_LINE = re.compile(r'  File "(.*)", line \d+, in .*')


def _warn_at_users_line() -> None:
    """Show a warning from C++ at the user's line: it names the innermost Python frame, which is
    often one of cgtool's."""
    before = warnings.showwarning

    def showwarning(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if _FORWARD_TRACE in str(message):
            if is_refused():
                return
            message = _without_internal_frames(str(message))
        if file is not None or not filename.startswith(_OWN_FOLDER):
            before(message, category, filename, lineno, file, line)
            return
        chain = chain_of(sys._getframe(1))
        if chain:
            frame = frame_of(chain[0])
            before(message, category, frame.file, frame.line, file, line)
        elif sys.stderr is not None:
            sys.stderr.write(f"{category.__name__}: {message}\n")

    warnings.showwarning = showwarning


def _without_internal_frames(text: str) -> str:
    """The warning of ``detect_anomaly`` with the user's frames alone."""
    kept: list[str] = []
    keep = True
    for line in text.splitlines():
        frame = _TRACE_LINE.fullmatch(line)
        if frame is not None:
            keep = not is_internal_file(frame[1])
        elif not line.startswith("    "):
            keep = True
        if keep:
            kept.append(line)
    if not any(map(_TRACE_LINE.fullmatch, kept)):
        kept = [line.partition(_FORWARD_TRACE)[0] for line in kept]
    return "\n".join(kept)
