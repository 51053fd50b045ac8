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


_FORCES = """
import torch

weight, bias, other, x = (torch.randn(4, device="cuda", requires_grad=True) for _ in range(4))
energy = (other * weight + bias).sum()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    forces = torch.autograd.grad((x * weight + bias).sum(), {inputs})
graph.replay()
"""


@pytest.mark.parametrize(
    ("inputs", "codes"),
    [
        ("x", set()),
        ("[torch.autograd.graph.get_gradient_edge(x)]", set()),
        ("[x, weight]", {"accumulate-grad-default-stream"}),
        (
            "[torch.autograd.graph.get_gradient_edge(bias)]",
            {"accumulate-grad-default-stream"},
        ),
    ],
)
def test_only_nodes_of_what_is_asked_for_run(tmp_path: Path, inputs: str, codes: set[str]) -> None:
    # As in a force field: `energy` keeps the nodes of the weights, whose gradients nobody asks for.
    path = tmp_path / "script.py"
    path.write_text(_FORCES.format(inputs=inputs))
    assert {code for code, _ in in_fork(check, path, timeout=60).findings} == codes
