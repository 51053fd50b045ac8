"""``cgtool doctor``: what this machine supports."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from typing import Annotated

import typer

from cgtool.cli import options as opt
from cgtool.cli.output import show_report
from cgtool.model.failure import machine
from cgtool.model.finding import Capability

SECONDS = 300
"""Time limit for importing torch and opening the GPU."""


def _driver() -> Capability:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int()
        library.cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return Capability(
            "driver", "absent", "libcuda.so.1 is not on this machine", "NVIDIA's driver"
        )
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    return Capability("driver", "available", f"CUDA {version}")


def _layout() -> Capability:
    from cgtool.render.dot import engine

    program = engine()
    if program is None:
        return Capability("SVG and PNG", "absent", "no dot program", "pip install graphviz-pure")
    return Capability("SVG and PNG", "available", str(program))


def _with_torch() -> list[Capability]:
    import msgspec

    try:
        process = subprocess.run(
            [sys.executable, "-m", "cgtool.devices.cuda.capabilities"],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Capability("torch", "absent", f"importing it took more than {SECONDS} s")]
    lines = process.stdout.decode(errors="replace").strip().splitlines()
    if process.returncode != 0 or not lines:
        errors = process.stderr.decode(errors="replace").strip().splitlines()
        reason = errors[-1] if errors else f"the probe ended with exit code {process.returncode}"
        return [Capability("torch", "absent", reason)]
    return msgspec.json.decode(lines[-1], type=list[Capability])


def _build() -> None:
    """Compile what ``torch_compat.op_watch`` needs, in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", "cgtool.torch_compat.op_watch"],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines()
        raise machine(
            "the op recorder in C++ was not compiled",
            why=lines[-1] if lines else f"the compilation ended with {process.returncode}",
            fix="cgtool run works without it, but its captures take longer",
        )


def doctor(
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="First compile the op recorder in C++, so that `cgtool run` captures faster.",
        ),
    ] = False,
    format_: opt.FormatOption = "table",
    output: opt.Output = None,
) -> None:
    """List the features that this machine supports, and how to enable the missing ones."""
    from cgtool.render.report_table import render_doctor

    if build:
        _build()
    rows = [Capability("python", "available", platform.python_version()), _driver(), _layout()]
    rows += _with_torch()
    report = {"capabilities": rows}
    show_report("cgtool-doctor", report, lambda _: render_doctor(rows), format_, output)
