"""``cgtool run --step`` on the simulated device: replays node by node."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.model import capture_file
from cgtool.model.capture import Capture
from tests.forked_workers import run_cgtool

PROGRAM = """
import sys, threading
import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
x = torch.randn(4, 8, device="cuda", requires_grad=True)
index = torch.zeros(4, dtype=torch.long, device="cuda")
side = torch.cuda.Stream()


def captured(function, **options):
    graph = torch.cuda.CUDAGraph(**options)
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def forward():
    current = torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        noise = torch.rand_like(x)
    y = torch.nn.functional.dropout(x, 0.5) * 2
    current.wait_stream(side)
    return y + noise


def backward():
    def block(x):
        return torch.nn.functional.dropout(x).sin()
    x.grad = None
    checkpoint(block, x, use_reentrant=False).sum().backward()
    return x.grad


def pick():
    return x.detach()[index] * 3


graphs = [captured(forward), captured(backward), captured(pick, keep_graph=True)]
empty = captured(lambda: None)[0]
linear = torch.cuda.make_graphed_callables(torch.nn.Linear(8, 2).cuda(), (x,))
for step in range(3):
    for graph, result in graphs:
        graph.replay()
        print(result.tolist())
    empty.replay()
    linear(x).sum().backward()
    print(x.grad.tolist(), torch.rand(2, device="cuda").tolist())
graphs[2][0].instantiate()
graphs[2][0].replay()
other = threading.Thread(target=graphs[0][0].replay)
other.start(), other.join()
print(graphs[0][1].tolist(), torch.rand(2, device="cuda").tolist())
again = graphs[1][0]
again.reset()
del graphs[1], graph, result
"""
FAULT = """
index[2] = 1 << 40
try:
    graphs[1][0].replay()
except IndexError as error:
    print(error)
sys.exit(3)
"""


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("step")
    (folder / "steps.py").write_text(PROGRAM)
    (folder / "fault.py").write_text(PROGRAM + FAULT)
    return folder


def run(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Capture]:
    done = run_cgtool("run", "--device", "simulated", "-o", "a.cgt", *arguments, cwd=folder)
    return done, capture_file.read(folder / "a.cgt")


def test_outputs_and_random_numbers_are_those_without_it(folder: Path) -> None:
    plain, _ = run(folder, "steps.py")
    stepped, capture = run(folder, "--step", "steps.py")
    assert (plain.returncode, stepped.returncode) == (0, 0), stepped.stderr
    assert stepped.stdout == plain.stdout
    assert "node-faults" not in {finding.code for finding in ledger_findings(capture)}
    assert capture.ledger is not None
    assert capture.ledger.lost == ()
    texts = {caveat.code: caveat.text for caveat in capture.caveats}
    assert texts["stepped"].startswith("17 replays of 5 graphs ran node by node")
    assert texts["not-stepped"] == "1 graph replayed whole: it has no nodes"
    assert [graph.replays for graph in capture.ledger.graphs] == [4, 3, 4, 3, 3, 3]
    assert "ran node by node" in " ".join(stepped.stderr.split())


def test_a_node_that_fails_is_named_and_the_program_gets_its_error(folder: Path) -> None:
    plain, _ = run(folder, "fault.py")
    done, capture = run(folder, "--step", "fault.py")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (3, done.stdout)
    (finding,) = (each for each in ledger_findings(capture) if each.code == "node-faults")
    line = 1 + PROGRAM.splitlines().index("    return x.detach()[index] * 3")
    assert (finding.frames[0].line, finding.phase) == (line, "replay")
    assert "`aten::index.Tensor`, fails in replay 5: index 1099511627776" in finding.reason
    (said,) = (text for text in done.stderr.splitlines() if text.startswith("error: node 0 of"))
    assert said == f"error: {finding.reason} (fault.py:{line} in pick)"


def test_a_program_that_was_killed_keeps_the_node(folder: Path) -> None:
    text = PROGRAM + textwrap.dedent(FAULT).replace("except IndexError as error:", "finally:")
    text = text.replace("print(error)", "import os; os.kill(os.getpid(), 9)")
    (folder / "killed.py").write_text(text)
    done, capture = run(folder, "--step", "killed.py")
    assert done.returncode == 137
    assert "error: node 0 of" in done.stderr
    assert "node-faults" in {finding.code for finding in ledger_findings(capture)}


def test_it_excludes_times(folder: Path, cgtool) -> None:
    code, _, err = cgtool("run", "--times", "--step", folder / "steps.py")
    assert code == 2
    assert "--times and --step exclude each other" in err
