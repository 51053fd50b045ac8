"""The registry against what is derived from it and the modules that declare its codes.

`UPDATE_GOLD=1 pytest tests/findings/test_registry.py` writes the ``detectors:`` lines of the heads,
docs/findings/README.md and the count in README.md again.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import pkgutil
import re
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from cgtool.analysis.reports import explain_findings
from cgtool.findings import code, codes, page
from cgtool.model.finding import Finding

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "findings"
UPDATE = bool(os.environ.get("UPDATE_GOLD"))


@functools.cache
def _literals() -> dict[str, dict[str | None, list[object]]]:
    """The literals of every module of the package, by its name without ``cgtool.`` and by the
    function whose first argument they are, if any."""
    package = ROOT / "cgtool"
    found = {}
    for path in sorted(package.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        first_of = {
            id(node.args[0]): node.func.id
            for node in nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
        }
        literals = defaultdict(list)
        for node in nodes:
            if isinstance(node, ast.Constant):
                literals[first_of.get(id(node))].append(node.value)
        found[".".join(path.relative_to(package).with_suffix("").parts)] = literals
    return found


def test_each_page_names_the_modules_that_declare_its_code():
    declared: dict[str, list[str]] = defaultdict(list)
    for module, literals in _literals().items():
        for name in sorted(set(literals["code"])):
            declared[name].append(module)
    assert set(declared) <= set(codes())
    for name in codes():
        if UPDATE:
            path = PAGES / f"{name}.md"
            line = f"detectors: [{', '.join(declared[name])}]"
            path.write_text(re.sub(r"^detectors:.*$", line, path.read_text(), count=1, flags=re.M))
        else:
            assert page(name).head.detectors == tuple(declared[name]), name


def test_what_no_module_declares_is_found_by_no_command():
    for name in codes():
        head = page(name).head
        commands = [each for each in (head.gpu, head.simulated) if not each.startswith("no:")]
        assert bool(head.detectors) or not commands, name


def test_no_code_is_repeated_outside_its_declaration():
    """Nothing would check a literal; a caveat of a capture may have a code's name."""
    known = set(codes())
    for module, literals in _literals().items():
        for function in set(literals) - {"code", "Caveat"}:
            assert not known & set(literals[function]), module


def test_what_only_costs_memory_is_a_note():
    """It does not change the exit code of `check`."""
    severities = {name: page(name).head.severity for name in codes() if _is_memory(name)}
    assert set(severities.values()) == {"note"}, severities


def _is_memory(name: str) -> bool:
    return page(name).head.category == "memory"


def test_a_code_without_a_page_cannot_be_declared():
    with pytest.raises(LookupError, match=r"sync-itm.*docs/findings/sync-itm\.md"):
        code("sync-itm")


def test_a_finding_of_a_newer_version_is_read_and_shown():
    read = msgspec.json.decode(b'{"code":"from-the-future","reason":"r"}', type=Finding)
    (shown,) = explain_findings([read])
    assert (shown.code, shown.title, shown.severity) == ("from-the-future",) * 2 + ("warning",)


def test_the_index_of_the_pages_is_that_of_the_registry():
    path, text = PAGES / "README.md", _index()
    if UPDATE:
        path.write_text(text)
    assert path.read_text() == text, "UPDATE_GOLD=1 writes it again"


def test_the_front_page_counts_the_codes():
    path = ROOT / "README.md"
    if UPDATE:
        path.write_text(re.sub(r"\d+ codes", f"{len(codes())} codes", path.read_text()))
    assert set(re.findall(r"(\d+) codes", path.read_text())) == {str(len(codes()))}


def _index() -> str:
    heads = {name: page(name).head for name in codes()}
    on_gpu = sum(not head.gpu.startswith("no:") for head in heads.values())
    simulated = sum(not head.simulated.startswith("no:") for head in heads.values())
    lines = [
        "# Findings",
        "",
        "Each code has a page with a wrong and a right example; `cgtool explain CODE` prints it.",
        f"Of {len(heads)} codes, cgtool finds {on_gpu} on a GPU and {simulated} on the simulated "
        "device,",
        "at the line that causes them. The tests run both examples of each page by the command in",
        "its head. This file is generated from the heads of the pages.",
        "",
    ]
    for category in sorted({head.category for head in heads.values()}):
        lines += [
            f"## {category}",
            "",
            "| code | severity | phase | what is wrong | GPU | simulated |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| [{name}]({name}.md) | {head.severity} | {head.phase} | {head.title} "
            f"| {_cell(head.gpu)} | {_cell(head.simulated)} |"
            for name, head in heads.items()
            if head.category == category
        ]
        lines.append("")
    return "\n".join(lines)


def _cell(command: str) -> str:
    """``check``, or why there is no command."""
    if command.startswith("no:"):
        return command
    return next(word for word in command.split() if "=" not in word)


def test_every_detector_of_a_script_is_called():
    from cgtool.detectors import script
    from cgtool.detectors.reporting import Detector
    from cgtool.detectors.script import run

    for module in pkgutil.iter_modules(script.__path__, f"{script.__name__}."):
        importlib.import_module(module.name)
    missing = {*Detector.__subclasses__()} - {run.Errors, *run._DETECTORS}
    assert not missing, f"add {missing} to _DETECTORS in cgtool/detectors/script/run.py"
