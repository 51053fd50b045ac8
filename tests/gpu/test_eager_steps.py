"""``cgtool run`` on a GPU: calls of captured code outside graphs, and of compiled code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_eager_steps import BEFORE, ENGINE, assert_counted, report_of, runs_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.11 has no sys.monitoring"),
]

COMPILED = """
from torch._dynamo.utils import counters
model = torch.compile(Decoder().cuda())
model(rows(2))
graph = captured(lambda: model(rows(2)))
for size in (2, 3, 4, 5, 5):
    model(rows(size))
    graph.replay()
print(json.dumps([counters["stats"], counters["frames"], counters["graph_break"]]))
"""


def run(*arguments: str, cwd: Path) -> Any:
    command = [sys.executable, "-m", "cgtool", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_an_engine_counts_the_same_steps(tmp_path: Path) -> None:
    assert_counted(report_of(tmp_path, ENGINE, "--rows", "20", run=run), tmp_path)


def test_compiled_code_is_followed_and_compiled_as_without(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BEFORE + COMPILED)
    plain, recorded = (
        subprocess.run(
            [sys.executable, *command, "program.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in ((), ("-m", "cgtool", "run", "--quiet", "-o", "run.cgt"))
    )
    assert json.loads(plain) == json.loads(recorded)
    report = json.loads(run("run", "run.cgt", "--format", "json", cwd=tmp_path).stdout)
    assert runs_of(report, "code", "why") == {
        ("Decoder.forward", ""): 1,
        ("Decoder.forward", "x.shape[0] > 2"): 4,
    }


TRAINING = """
torch.set_grad_enabled(True)
model = Decoder().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = rows(4)

def train():
    optimizer.zero_grad(set_to_none=True)
    model(x).sum().backward()  # on a thread of autograd's
    optimizer.step()

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.synchronize()
graph = captured(train)
for _ in range(5):
    graph.replay()
for _ in range(2):
    train()
    model(x)  # is most of nothing
"""


def test_a_whole_step_with_its_backward(tmp_path: Path) -> None:
    report = report_of(tmp_path, TRAINING, "--rows", "20", run=run)
    assert runs_of(report, "code") == {"train": 2}
    assert report["steps"].startswith("5 of 7 steps ran in graphs; 2 ran eagerly")
