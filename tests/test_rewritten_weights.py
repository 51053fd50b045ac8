"""`cgtool run` says at each event which weights of a graph were rewritten since the one before, and
which ones the program has elsewhere by now: on the simulated device, and on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cgtool.model import capture_file
from cgtool.torch_compat import op_watch

PROGRAM = """
import torch
from torch import nn

import cgtool

class Engine:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)).cuda()
        self.model.eval()
        self.x = torch.zeros(4, 8, device="cuda")
        for _ in range(2):
            self.model(self.x)
        self.graph = torch.cuda.CUDAGraph()
        for parameter in self.model.parameters():
            parameter.grad = None  # the last one has two names
        with torch.cuda.graph(self.graph):
            self.y = self.model(self.x)

    def step(self):
        self.x.normal_()
        self.graph.replay()

def mark(name):
    engine.step()
    torch.cuda.synchronize()
    cgtool.event(name)

torch.set_grad_enabled(False)
engine = Engine()
mark("ready")
mark("nothing")
weights = {name: value.clone() for name, value in engine.model.state_dict().items()}
engine.model.load_state_dict(weights)
mark("same")
for value in weights.values():
    value.add_(1)
engine.model.load_state_dict(weights)
mark("loaded")
engine.model[0].bias.data.mul_(2)
mark("one")
engine.model[2].weight.data[3, 5] += 1
mark("one number")
before = [each.data for each in engine.model.parameters()]
for parameter in engine.model[2].parameters():
    parameter.data = parameter.data.clone()
mark("swapped")
for parameter, data in zip(engine.model.parameters(), before):
    parameter.data = data
mark("back")
del before
engine.model[2].weight.data = engine.model[2].weight.data.clone()
mark("freed")
mark("still freed")
engine.graph.reset()
cgtool.event("over")
"""
READS = 8
"""Parameters and running statistics: not the number of batches, which nothing reads."""


@pytest.mark.parametrize("device", ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_rewritten_and_what_is_rebound(device: str, tmp_path: Path) -> None:
    if device == "cuda" and not op_watch.library().is_file():
        op_watch.build()
    (tmp_path / "engine.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "cgtool", "run", "-o", "run.cgt", "engine.py"]
    command[4:4] = ["--device", device] if device == "simulated" else []
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ledger = capture_file.read(tmp_path / "run.cgt").ledger
    assert ledger is not None
    assert {each.weights for each in ledger.events[:-1]} == {READS}
    assert [(each.name, each.rebound, each.rewritten) for each in ledger.events] == [
        ("ready", 0, 0),
        ("nothing", 0, 0),
        ("same", 0, 0),
        ("loaded", 0, READS),
        ("one", 0, 1),
        ("one number", 0, 1),
        ("swapped", 2, 0),
        ("back", 0, 0),
        ("freed", 1, 0),
        ("still freed", 1, 0),
        ("over", None, None),
    ]
