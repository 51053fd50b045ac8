"""DOT text to SVG or PNG: the system's Graphviz when there is one, else the pip-installed one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from graphviz.backend import dot_command, execute

from cgtool.model.failure import machine, usage

SECONDS = 120
PIP_PROGRAM = "graphviz-pure"


def engine() -> Path | None:
    """The program to lay out with: ``dot`` on the PATH, else the one of the graphviz-pure
    package, which lies beside the running Python."""
    found = shutil.which("dot")
    if found is not None:
        return Path(found)
    beside = Path(sys.executable).parent / PIP_PROGRAM
    if beside.exists():
        return beside
    found = shutil.which(PIP_PROGRAM)
    return Path(found) if found else None


def render(text: str, kind: str, *, seconds: float = SECONDS) -> bytes:
    """Lay the graph out as ``svg`` or ``png``.

    Raises CgtoolError: exit 3 without any layout program, 2 when it fails or takes too long.
    """
    program = engine()
    if program is None:
        raise machine(
            f"no Graphviz to lay out the {kind.upper()}",
            fix="pip install graphviz-pure, or install Graphviz; --dot needs neither",
        )
    # The graphviz package runs what this name says; its own `pipe` knows no time limit.
    dot_command.DOT_BINARY = program
    try:
        done = execute.run_check(
            dot_command.command("dot", kind),
            input=text.encode(),
            capture_output=True,
            quiet=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise usage(
            f"the layout took more than {seconds:.0f} s",
            fix="draw less: --collapse 1, a smaller --limit, or --select 'module=layers.0.*'",
        ) from None
    except (subprocess.CalledProcessError, execute.ExecutableNotFound, OSError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        reason = said.splitlines()[0] if said else str(error)
        raise usage(
            f"{program.name} could not lay the graph out: {reason}",
            fix="draw less: --collapse 1; or take the text with --dot",
        ) from error
    picture: bytes = done.stdout
    return picture
