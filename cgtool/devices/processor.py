"""The processor that drives a device."""

from __future__ import annotations

import os
import platform
from itertools import takewhile
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CPU_NAMES = ("model name", "cpu model", "cpu")
"""How Linux names it on x86, MIPS and POWER."""
_ARM_CPU = ("CPU implementer", "CPU part")
"""Linux does not name ARM cores; these numbers identify one (Arm ARM, MIDR_EL1)."""


def processor() -> str | None:
    """Its name as Linux reports it (``AMD EPYC 9654``); None if it reports none."""
    try:
        with _CPUINFO.open(errors="replace") as file:
            # Only the first: the system writes the others when they are read, which takes long.
            lines = list(takewhile(str.strip, file))
    except OSError:
        return platform.processor() or None
    pairs = (line.partition(":") for line in lines)
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = next((facts[key] for key in _CPU_NAMES if facts.get(key)), None)
    if name is None and all(facts.get(key) for key in _ARM_CPU):
        name = f"{platform.machine()} {' '.join(f'{key} {facts[key]}' for key in _ARM_CPU)}"
    return name or platform.processor() or None


def processors() -> int | None:
    """How many processors this process may use; None if it is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
