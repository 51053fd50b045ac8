"""The processor of this machine: what the times of a host depend on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "cpu model", "cpu")
"""How Linux names it on x86, MIPS and POWER."""
_ARM = ("CPU implementer", "CPU part")
"""Linux does not name ARM cores; these numbers identify one (Arm ARM, MIDR_EL1)."""


def processor() -> str | None:
    """Its name as the kernel reports it (``AMD EPYC 9654``); None where it reports none."""
    try:
        text = _CPUINFO.read_text(errors="replace")
    except OSError:
        return platform.processor() or None
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = next((facts[key] for key in _NAMES if facts.get(key)), None)
    if name is None and all(facts.get(key) for key in _ARM):
        name = f"{platform.machine()} {' '.join(f'{key} {facts[key]}' for key in _ARM)}"
    return name or platform.processor() or None


def processors() -> int | None:
    """How many processors this process may use; None where it is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
