"""Forked processes have imported PyTorch: otherwise, importing it would be most of their work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.forked_workers import in_fork

ROOT = Path(__file__).resolve().parent.parent
FIRST_FORK = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.forked_workers import in_fork, preload
from tests.test_forked_workers import is_loaded
preload("tests.gold_files")
assert in_fork(is_loaded, "tests.gold_files", timeout=60)
"""


def is_loaded(name: str) -> bool:
    return name in sys.modules


def test_pytorch_is_imported_before_the_fork() -> None:
    assert in_fork(is_loaded, "torch._dynamo", timeout=120)


def test_the_first_fork_may_be_started_in_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_FORK], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
