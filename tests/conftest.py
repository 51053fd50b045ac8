"""Tests are run for this tree alone; those marked `gpu` or `browser` are skipped, with the reason,
where there is none."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.browser import no_browser

pytest.register_assert_rewrite("tests.gold_files")

# Tests run in parallel. Threads of PyTorch's own would wait for each other, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What the commands print is as wide as in a pipe. The environment may have a width without a
# terminal: readline sets both in a process that imports it, and those that it starts inherit them.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# By default an example that takes more than 200 ms fails: a busy machine would fail the tests.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _no_gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if torch.version.cuda is None:
        return "PyTorch is built without CUDA"
    return None if torch.cuda.is_available() else "no CUDA device"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not again in each worker of xdist
        _check_import()
    # A shell's background job is deaf to it, and so is all that the tests start in one.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_import() -> None:
    """The processes that tests start import this cgtool: a PYTHONPATH that is left over, or another
    installed version, would be tested instead."""
    own = Path(__file__).resolve().parent.parent / "cgtool" / "__init__.py"
    command = [sys.executable, "-c", "import cgtool; print(cgtool.__file__)"]
    done = subprocess.run(command, cwd=os.sep, capture_output=True, text=True, check=False)
    found = done.stdout.strip()
    if not found or Path(found).resolve() != own:
        raise pytest.UsageError(
            f"the processes of the tests would import {found or 'no cgtool'}, not {own}: install "
            "it (README.md), and unset PYTHONPATH"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, thing, missing in (("gpu", "a GPU", _no_gpu), ("browser", "a browser", no_browser)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        for item in marked if reason is not None else ():
            item.add_marker(pytest.mark.skip(reason=f"needs {thing}: {reason}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what most tests need, unless this process only starts the workers of xdist."""
    if not session.config.pluginmanager.hasplugin("dsession"):
        with contextlib.suppress(ImportError):
            for name in ("cgtool.devices.simulated.device", "torch._dynamo"):
                importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Collect garbage as fast as a forked worker does: a check does so again and again, and would
    each time walk through PyTorch, all tests, and what earlier tests have left."""
    gc.collect()
    gc.freeze()
    return (yield)
