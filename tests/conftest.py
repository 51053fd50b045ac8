"""Tests marked `gpu` are skipped, with the reason, where there is no CUDA device."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.gold_files")

# Tests run in parallel. Threads of PyTorch's own would wait for each other, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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


def pytest_configure() -> None:
    # A shell's background job is deaf to it, and so is all that the tests start in one.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection(session: pytest.Session) -> None:
    """Collect garbage as fast as a forked worker does: a check does so again and again, and would
    walk through all of PyTorch each time."""
    if session.config.pluginmanager.hasplugin("dsession"):
        return  # the process that starts the workers of xdist runs no test
    with contextlib.suppress(ImportError):
        for name in ("cgtool.devices.simulated.device", "torch._dynamo"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    reason = _no_gpu()
    if reason is not None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))
