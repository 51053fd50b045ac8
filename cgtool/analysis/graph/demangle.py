"""C++ names of kernels, demangled, with a bound on what a hostile name can cost.

The Itanium scheme lets a name refer back to its own parts, so a name of 300 bytes can stand for
gigabytes. Names with few references are demangled here; the rest in one child process whose
memory and time are limited, and a name that does not survive there stays mangled.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache

import pycxxfilt

MAX_MANGLED = 1 << 16
"""Characters; a longer name is shown as it is."""
MAX_DEMANGLED = 1 << 18
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")

_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import pycxxfilt
for line in sys.stdin:
    try:
        text = pycxxfilt.demangle(line.rstrip("\\n")) or ""
    except ValueError:
        text = ""
    print(text if len(text) <= int(sys.argv[1]) else "", flush=True)
"""


def demangle(name: str) -> str:
    """The C++ signature of a mangled name; names that are not mangled, or not well, unchanged."""
    return _demangle(name)


def demangle_all(names: Iterable[str]) -> dict[str, str]:
    """``demangle`` of many names: at most one child process for all the costly ones."""
    unique = dict.fromkeys(names)
    costly = [name for name in unique if _mangled(name) and not _cheap(name)]
    limited = dict(zip(costly, _limited(costly), strict=True))
    return {name: limited[name] if name in limited else _demangle(name) for name in unique}


def _mangled(name: str) -> bool:
    return name.startswith("_Z") and len(name) <= MAX_MANGLED and name.isascii()


def _cheap(name: str) -> bool:
    # It takes two references to what stands before them to double a name.
    doublings = len(_REFERENCE.findall(name)) // 2
    return doublings < 24 and len(name) << doublings <= 1 << 24


@lru_cache(maxsize=1 << 14)
def _demangle(name: str) -> str:
    if not _mangled(name) or not name.isprintable():
        return name
    if not _cheap(name):
        return _limited([name])[0]
    try:
        text = pycxxfilt.demangle(name)
    except ValueError:
        return name
    return text if text and len(text) <= MAX_DEMANGLED else name


def _limited(names: Sequence[str]) -> list[str]:
    """Demangle in a child with bounded memory and time; what it dies of stays mangled."""
    results: list[str] = []
    for _ in range(3):
        rest = list(names[len(results) :])
        if not rest:
            break
        lines = [name if name.isprintable() else "" for name in rest]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _CHILD, str(MAX_DEMANGLED)],
                input="\n".join(lines) + "\n",
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            break
        answers = done.stdout.split("\n")[:-1]
        results += [text or name for text, name in zip(answers, rest, strict=False)]
        if len(answers) < len(rest):
            results.append(rest[len(answers)])
    return results + list(names[len(results) :])
