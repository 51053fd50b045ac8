"""`cgtool check SCRIPT`: static inputs that nothing writes between replays."""

from __future__ import annotations

import json

import pytest

from tests.forked_workers import run_cgtool

CODE = "input-never-written"
CAPTURE = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 4, device="cuda"), torch.randn(8, 2, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=False)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
"""
BATCHES = "data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 2))\n" + (
    "loader = torch.utils.data.DataLoader(data, batch_size=8)\n"
)
ON_DEVICE = "    batch, target = batch.cuda(), target.cuda()\n"
LOOP = f"{BATCHES}for batch, target in loader:\n"
REPLAYS = "for _ in range(6):\n    graph.replay()\n"
OTHER_STATE = """\
import torch

tokens = torch.zeros(4, dtype=torch.long, device="cuda")
table = torch.randint(16, (16,), device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    tokens.copy_(table[tokens])
"""
NOISE = """\
import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = x + torch.randn_like(x)
"""


@pytest.mark.parametrize(
    ("source", "severity"),
    [
        (CAPTURE + LOOP + "    graph.replay()\n", "warning"),
        (CAPTURE + LOOP + ON_DEVICE + "    graph.replay()\n", "warning"),
        (CAPTURE + REPLAYS, "note"),
        (
            CAPTURE + LOOP + ON_DEVICE + "    graph.replay()\n    print(batch.sum().item())\n",
            "note",
        ),
        (CAPTURE + LOOP + "    model(batch.cuda())\n    graph.replay()\n", "note"),
        (CAPTURE + "graph.replay()\ngraph.replay()\n", None),
        (CAPTURE + LOOP + "    x.copy_(batch)\n    y.copy_(target)\n    graph.replay()\n", None),
        (CAPTURE + LOOP + "    x.copy_(batch)\n    graph.replay()\n", "note"),
        (CAPTURE + f"{LOOP}    x.copy_(batch)\n    graph.replay()\n    target.sum()\n", None),
        (CAPTURE + LOOP + "    x.data = x.data\n    x[0].fill_(1.0)\n    graph.replay()\n", "note"),
        (OTHER_STATE + REPLAYS, None),
        (NOISE + REPLAYS, None),
    ],
    ids=[
        "host",
        "device",
        "timed",
        "read",
        "used",
        "two",
        "copied",
        "one",
        "read-later",
        "part",
        "fed",
        "noise",
    ],
)
def test_inputs_that_stay_as_they_are(source, severity, tmp_path):
    (tmp_path / "script.py").write_text(source)
    done = run_cgtool(
        "check", "--device", "simulated", "--format", "json", "script.py", cwd=tmp_path, timeout=300
    )
    assert done.returncode == (severity == "warning"), done.stderr
    found = [each for each in json.loads(done.stdout)["findings"] if each["code"] == CODE]
    assert [each["severity"] for each in found] == ([] if severity is None else [severity])
    for each in found:
        assert (
            "`x` [8, 4]" in each["reason"]
            or "`y` [8, 2]" in each["reason"]
            or "`tokens`" in each["reason"]
        )
        assert "graph.replay()" in source.splitlines()[each["line"] - 1]
