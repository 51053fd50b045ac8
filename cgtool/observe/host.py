"""The processor of this machine: what the times of a host depend on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "cpu model", "cpu")
"""Of x86, MIPS and POWER, in Linux's words."""
_ARM = ("CPU implementer", "CPU part")
"""Linux names no ARM core: its numbers stand for it (Arm ARM, MIDR_EL1)."""


def processor() -> str | None:
    """Its name, as the kernel tells it (``AMD EPYC 9654``); None where nothing does."""
    try:
        text = _CPUINFO.read_text(errors="replace")
    except OSError:
        return platform.processor() or None
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = next((facts[one] for one in _NAMES if facts.get(one)), None)
    if name is None and all(facts.get(one) for one in _ARM):
        name = f"{platform.machine()} {' '.join(f'{one} {facts[one]}' for one in _ARM)}"
    return name or platform.processor() or None


def processors() -> int | None:
    """How many of them this process may use; None where nothing says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
