"""A new finding is two files, its page and its detector: CONTRIBUTING.md says so.

A copy of the package gets a page and a rule that declares its code; everything that shows findings
then shows it, and without the page the rule does not import.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PAGE = """\
---
title: square root of a tensor
category: misuse
severity: warning
phase: capture
fix: use `torch.rsqrt`
gpu: check wrong.py:build
simulated: check wrong.py:build
detectors: []
---

A square root.

## Wrong

```python
import torch


def build():
    x = torch.ones(4, device="cuda")
    return lambda: x.sqrt()  # <- square-root
```

## Right

```python
import torch


def build():
    x = torch.ones(4, device="cuda")
    return lambda: x.rsqrt()
```
"""

DETECTOR = """

SQUARE_ROOT = code("square-root")
OPS["aten::sqrt"] = Refusal(SQUARE_ROOT, "`sqrt`", "use `rsqrt`")
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the two files changed; what is compiled of the others holds."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("cgtool", "tests", "docs"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("gold", "img"),
        )
    shutil.copy(ROOT / "README.md", folder)
    (folder / "docs" / "findings" / "square-root.md").write_text(PAGE)
    with (folder / "cgtool" / "detectors" / "op_rules.py").open("a") as rules:
        rules.write(DETECTOR)
    return folder


def _run(copy: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def sarif(copy: Path) -> dict[str, object]:
    """What ``check`` prints of the page's wrong example."""
    explain = ("-m", "cgtool.cli.app", "explain", "square-root", "--example", "wrong")
    example = _run(copy, *explain)
    assert example.returncode == 0, example.stderr
    (copy / "wrong.py").write_text(example.stdout)
    check = ("check", "wrong.py:build", "--device", "simulated", "--format", "sarif")
    done = _run(copy, "-m", "cgtool.cli.app", *check)
    assert done.returncode == 1, done.stderr
    run: dict[str, object] = json.loads(done.stdout)["runs"][0]
    return run


def test_it_is_found_at_its_line(sarif) -> None:
    (result,) = sarif["results"]
    assert (result["ruleId"], result["level"]) == ("square-root", "warning")
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == 1 + PAGE[PAGE.index("import torch") :].split("# <-")[0].count(
        "\n"
    )


def test_its_page_is_the_rule(sarif) -> None:
    (rule,) = sarif["tool"]["driver"]["rules"]
    assert rule["shortDescription"] == {"text": "square root of a tensor"}
    assert rule["properties"] == {"tags": ["misuse"]}


def test_what_is_derived_is_written_by_the_test_of_the_registry(copy: Path) -> None:
    test = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "tests/findings/test_registry.py",
    )
    assert _run(copy, *test, "-x").returncode == 1
    updated = _run(copy, *test, UPDATE_GOLD="1")
    assert updated.returncode == 0, updated.stdout
    docs = copy / "docs" / "findings"
    assert "detectors: [detectors.op_rules]" in (docs / "square-root.md").read_text()
    row = "| [square-root](square-root.md) | warning | capture | square root of a tensor | check |"
    assert row in (docs / "README.md").read_text()


def test_without_its_page_the_detector_does_not_import(copy: Path, tmp_path: Path) -> None:
    page = copy / "docs" / "findings" / "square-root.md"
    page.rename(tmp_path / page.name)
    try:
        done = _run(copy, "-c", "import cgtool.detectors.op_rules")
    finally:
        (tmp_path / page.name).rename(page)
    assert "finding code `square-root` has no page" in done.stderr
