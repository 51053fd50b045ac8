"""The fixture ``cudagraph``: one a test, called with what the test captures."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cgtool.pytest_plugin.entries import named, root_of
from cgtool.pytest_plugin.error_translation import plainly
from cgtool.pytest_plugin.graph import Graph
from cgtool.pytest_plugin.marked import GATED, MARKED, read
from cgtool.pytest_plugin.marker_options import options_of
from cgtool.pytest_plugin.terminal_summary import REPORTED
from cgtool.pytest_plugin.workers import Workers


class Factory:
    """``cudagraph("model.py:build")``, ``cudagraph(build)``: captures, and says what came of it."""

    def __init__(self, item: pytest.Item, folders: pytest.TempPathFactory) -> None:
        self._item = item
        self._folders = folders
        self._graphs = 0
        # A plugin may run a test a second time.
        item.stash[REPORTED], item.stash[GATED] = [], False

    def __repr__(self) -> str:
        return "<cudagraph>"

    @plainly
    def __call__(self, entry: object, /, **options: object) -> Graph:
        """Capture an entry point in a process of its own.

        ``entry`` is text as ``cgtool capture`` takes it, files from pytest's root or from the
        folder of the test; or a function at the top level of a module. Options are those of the
        command line (``input``, ``device``, ``warmup_iters``, ..., all fields of
        ``CaptureOptions``) and ``timeout``; they go before those of the marker.

        Raises AssertionError where the code cannot be captured: its message is that of cgtool,
        with the user's line.
        """
        item = self._item
        # Read again: a fixture may have put a marker on the test meanwhile.
        marked = item.stash[MARKED] = read(item)
        asked = options_of("cudagraph()", options, marked.options)
        if asked.device is None:
            default = "cuda" if asked.requires_gpu else None
            asked = replace(asked, device=item.config.getoption("cudagraph_device") or default)
        found = named(entry, root_of(item.config), item.path.parent)
        workers = Workers(
            options=asked.capture,
            folder=self._folders.mktemp("cudagraph"),
            timeout=asked.timeout,
            quiet=True,
            # Every gate says how long and how often.
            max_seconds=0.0,
            max_runs=0,
            entry=found,
            times=not item.config.getoption("cudagraph_no_times"),
        )
        self._graphs += 1
        return Graph(item, self._graphs, workers, marked.budgets)
