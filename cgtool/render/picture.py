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
    """The layout program: ``dot`` on the PATH, else that of the graphviz-pure package, which is
    installed beside the running Python."""
    beside = Path(sys.executable).parent / PIP_PROGRAM
    program = (
        shutil.which("dot")
        or (str(beside) if beside.exists() else None)
        or shutil.which(PIP_PROGRAM)
    )
    return Path(program) if program else None


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
    # The graphviz package runs the program of this name; its own `pipe` has no time limit.
    dot_command.DOT_BINARY = program
    try:
        result = execute.run_check(
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
        message = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        reason = message.splitlines()[0] if message else str(error)
        raise usage(
            f"{program.name} could not lay the graph out: {reason}",
            fix="draw less: --collapse 1; or take the text with --dot",
        ) from error
    picture: bytes = result.stdout
    return picture
