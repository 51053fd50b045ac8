"""``cgtool pools``: which pools it shows, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

TWO_POOLS = Path(__file__).parent.parent / "gold" / "captures" / "mlp-separate-simulated.cgt"


@pytest.fixture
def run(cgtool):
    return partial(cgtool, "pools")


def pools_of(text: str) -> list[str]:
    return [row["name"] for row in json.loads(text)["pools"]]


def test_all_pools_by_default(run) -> None:
    code, out, err = run(TWO_POOLS, "--format", "json")
    assert (code, err) == (0, "")
    assert pools_of(out) == ["forward", "backward"]
    assert json.loads(out)["simulated"] is True


def test_only_the_named_pools(run) -> None:
    _, out, _ = run(TWO_POOLS, "--format", "json", "--pool", "backward")
    assert pools_of(out) == ["backward"]
    names = ("--pool", "backward", "--pool", "forward")
    assert pools_of(run(TWO_POOLS, "--format", "json", *names)[1]) == ["forward", "backward"]
    _, out, _ = run(TWO_POOLS, "--pool", "backward")
    assert "backward" in out
    assert "forward" not in out


def test_a_pool_that_is_not_there(run) -> None:
    code, out, err = run(TWO_POOLS, "--pool", "backward", "--pool", "sideways")
    assert (code, out) == (2, "")
    assert "--pool sideways: the capture has forward, backward" in err


def test_a_table_in_a_file(run, tmp_path: Path) -> None:
    target = tmp_path / "pools.txt"
    assert run(TWO_POOLS, "-o", target)[:2] == (0, "")
    assert "(simulated: a model of the allocator)" in target.read_text()


def test_headings_are_explained_when_requested(run):
    assert "never used  bytes of the segments" not in run(TWO_POOLS)[1]
    assert "never used  bytes of the segments" in run(TWO_POOLS, "--explain")[1]
