"""A sentence about a mistake fits the call that it is about."""

from __future__ import annotations

import pytest

from tests.detectors.scripts import check
from tests.forked_workers import in_fork

HEAD = "import torch\nfrom torch import nn\n"
CALLABLE = """\
sample = torch.zeros(2, 4, dtype=torch.uint8, device="cuda")
model = nn.Linear(4, 4).cuda().requires_grad_(False)
graphed = torch.cuda.make_graphed_callables(lambda x: model(x.float()), (sample,))
print(graphed(torch.rand(2, 4, device="cuda")).sum().item())
"""
OPTIMIZER = """\
weight = torch.rand(4, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([weight], lr=0.05, capturable=True)
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = weight.square().sum()
    loss.backward()
    optimizer.step()
    return loss.detach()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for value in (True, False):
    optimizer.param_groups[0]["maximize"] = value
    graph.replay()
    print(loss.item())
"""


@pytest.mark.parametrize(
    ("source", "reason", "fix"),
    [
        (
            CALLABLE,
            "argument 0 is torch.float32 and its sample is torch.uint8: the copy into the sample "
            "converts the values, and drops their fractions",
            "`dtype=torch.float32`",
        ),
        (OPTIMIZER, "`maximize` of Adam has changed", "reads `maximize` on the host"),
    ],
    ids=["dtype of a sample", "flag of an optimizer"],
)
def test_of_a_script(tmp_path, source, reason, fix):
    path = tmp_path / "script.py"
    path.write_text(HEAD + source)
    outcome = in_fork(check, path, timeout=120)
    assert any(reason in each for each in outcome.reasons), outcome
    assert any(fix in (each or "") for each in outcome.fixes), outcome
