"""When a capture looks for what keeps autograd nodes of the default stream alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgtool.devices.simulated import stale_nodes
from tests.detectors.scripts import check
from tests.forked_workers import in_fork

_SCRIPT = """
import torch

model = torch.nn.Linear(4, 4).cuda()
x = torch.zeros(2, 4, device="cuda")
out = model(x)
{then}
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph), torch.no_grad():
    y = model(x)
graph.replay()
"""


def _searches(path: Path) -> int:
    searches = 0
    search = stale_nodes._following_grad

    def counted():
        nonlocal searches
        searches += 1
        return search()

    stale_nodes._following_grad = counted
    outcome = check(path)
    assert outcome.failure is None
    return searches


@pytest.mark.parametrize(
    ("then", "searches"),
    [("pass", 1), ("del out", 0), ("out = out.detach()", 0), ("out = out.sum()", 1)],
)
def test_search_only_while_such_a_node_lives(tmp_path: Path, then: str, searches: int) -> None:
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT.format(then=then))
    assert in_fork(_searches, path, timeout=60) == searches
