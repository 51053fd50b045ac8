"""Baselines of tests: one small file each, in a folder beside the file of the test.

``__cudagraphs__/test_model/test_step[4].json``; what the simulated device counts, which is ops and
not nodes, in ``test_step[4].simulated.json``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from cgtool.analysis.gate.budgets import same_entry
from cgtool.model import baseline
from cgtool.model.baseline import Baseline
from cgtool.model.failure import CgtoolError, usage
from cgtool.pytest_plugin.entries import root_of

FOLDER = "__cudagraphs__"
_LONGEST = 120
_ODD = re.compile(r"[^A-Za-z0-9_.,=+@\[\]-]")


def path_of(item: pytest.Item, number: int, *, simulated: bool) -> Path:
    """Where the baseline of the test's ``number``-th graph (from 1) lies."""
    names = [one.name for one in item.listchain() if isinstance(one, pytest.Class | pytest.Item)]
    stem = safe(".".join(names)) + (f".{number}" if number > 1 else "")
    kind = ".simulated.json" if simulated else ".json"
    return item.path.parent / FOLDER / item.path.stem / f"{stem}{kind}"


def safe(name: str) -> str:
    """A file name for a test: its own, where every file system takes that; else what it takes of
    it, and a hash, so that no two tests share one."""
    plain = _ODD.sub("-", name)[:_LONGEST]
    if plain == name:
        return name
    return f"{plain}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def how_to_record(item: pytest.Item) -> str:
    """The command that writes the test's baselines."""
    file = os.path.relpath(item.path, item.config.invocation_params.dir)
    test = "::".join((file, *item.nodeid.split("::")[1:]))
    return f"pytest {shlex.quote(test)} --cudagraph-update"


def read(path: Path, item: pytest.Item, entry: str) -> Baseline:
    """The baseline of a test. Raises CgtoolError (exit 2) when it is missing, damaged, or of
    another entry."""
    shown = shown_path(path, item.config)
    if _is_missing(path):
        raise usage(
            f"this test has no baseline: {shown} does not exist",
            why=_where_else(path, item.config),
            fix=f"record it with `{how_to_record(item)}` and commit the file; "
            "graph.gate(baseline=False) holds to budgets alone",
        )
    try:
        found = baseline.read(path)
    except CgtoolError as error:
        if "--save-baseline" not in (error.failure.fix or ""):
            raise
        raise CgtoolError(replace(error.failure, fix=f"`{how_to_record(item)}`")) from None
    if not same_entry(found.entry.spec, entry, root_of(item.config)):
        raise usage(
            f"{shown} is a baseline of {found.entry.spec}, and this test captures {entry}",
            why="figures of another entry say nothing of this one",
            fix=f"if the test is meant to have changed, `{how_to_record(item)}`",
        )
    return found


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # reading it says why not
    return False


def _where_else(path: Path, config: pytest.Config) -> str | None:
    """The one of the other kind of device, which is often there: CI without a GPU and a machine
    with one need a baseline each."""
    simulated = path.name.endswith(".simulated.json")
    stem = path.name.removesuffix(".simulated.json" if simulated else ".json")
    other = path.with_name(f"{stem}{'' if simulated else '.simulated'}.json")
    if not other.exists():
        return None
    here, there = ("the simulated device", "a GPU") if simulated else ("a GPU", "the simulated one")
    return f"{shown_path(other, config)} is that of {there}; this run is on {here}"


def shown_path(path: Path, config: pytest.Config) -> str:
    """From pytest's root, where it lies below it."""
    root = root_of(config)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def write(path: Path, values: Baseline) -> bool:
    """Whether the file had to change: one that says the same is left as it is, so that a refresh
    of all shows what changed. Raises CgtoolError (exit 2) where it cannot be written."""
    try:
        if _same(baseline.read(path), values):
            return False
    except CgtoolError:
        pass  # missing, or damaged: written anew
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise usage(f"cannot make {path.parent}: {error.strerror}") from error
    baseline.write(path, values)
    return True


def _same(old: Baseline, new: Baseline) -> bool:
    """Times are never the same twice: a baseline with new ones is another."""
    if old.samples or new.samples:
        return False

    def told(one: Baseline) -> tuple[object, ...]:
        entry = replace(one.entry, file=None, line=None)
        return entry, one.environment.device, one.environment.torch, one.counts, one.ops

    return told(old) == told(new)
