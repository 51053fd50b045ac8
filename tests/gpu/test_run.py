"""``cgtool run`` on a GPU, graph by graph against three hooks that were written by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cgtool.model import capture_file
from cgtool.model.capture import Capture

pytestmark = pytest.mark.gpu

HOOKS = """
import atexit, json, os, runpy, sys
import torch
from cuda.bindings import runtime

graphs, index = [], {}
Graph = torch.cuda.CUDAGraph
capture_begin, capture_end, replay = Graph.capture_begin, Graph.capture_end, Graph.replay

def begin(graph, *args, **kwargs):
    capture_begin(graph, *args, **kwargs)
    index[id(graph)] = len(graphs)
    graphs.append([0, 0, graph])

def end(graph):
    stream = torch.cuda.current_stream().cuda_stream
    captured = runtime.cudaStreamGetCaptureInfo(stream)[3]
    graphs[index[id(graph)]][0] = int(runtime.cudaGraphGetNodes(captured, 0)[-1])
    capture_end(graph)

def count(graph):
    graphs[index[id(graph)]][1] += 1
    replay(graph)

Graph.capture_begin, Graph.capture_end, Graph.replay = begin, end, count
atexit.register(lambda: print("HOOKS", json.dumps([graph[:2] for graph in graphs])))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

BY_HAND = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
graphs = {}
with torch.no_grad():
    for batch in (1, 2, 4, 8):
        x = torch.zeros(batch, 16, device="cuda")
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graphs[batch] = graph, x, y
    for step in range(21):
        graph, x, y = graphs[1 << step % 3]
        x.fill_(step)
        graph.replay()
print(sum(y.sum().item() for _, _, y in graphs.values()))
"""

CALLABLES = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
x = torch.randn(8, 16, device="cuda")
graphed = torch.cuda.make_graphed_callables(model, (x,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = graphed(x + step).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
print(loss.item())
"""

COMPILED = """
import torch
from torch import nn
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + 0.5 * self.down(h)

model = nn.Sequential(Block(), Block()).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
for step in range(8):
    torch.compiler.cudagraph_mark_step_begin()
    loss = compiled(torch.full((4 if step % 2 else 8, 64), 0.1 * step, device="cuda")).mean()
    loss.backward()
    total = sum(p.grad.sum().item() for p in model.parameters())
    model.zero_grad()
print(loss.item(), total)
"""


def output(*command: object, folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [Path.cwd(), *sys.path]))}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "text", [BY_HAND, CALLABLES, COMPILED], ids=["engine", "callables", "compiled"]
)
def test_as_hooks_written_by_hand(text: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    (tmp_path / "hooks.py").write_text(HOOKS)
    plain, _, hooks = output("hooks.py", "program.py", folder=tmp_path).partition("HOOKS ")
    assert output("-m", "cgtool", "run", "-o", "run.cgt", "program.py", folder=tmp_path) == plain
    capture = capture_file.read(tmp_path / "run.cgt")
    assert capture.ledger is not None
    assert capture.ledger.lost == ()
    kept = [
        [len(capture.graphs[entry.graph].nodes), entry.replays]
        for entry in capture.ledger.graphs
        if entry.graph is not None
    ]
    assert kept == json.loads(hooks)
    assert unplaced(capture) == []


def unplaced(capture: Capture) -> list[str]:
    """The kernels that have no op, or no line of the program."""
    names = []
    for graph in capture.graphs:
        for node in graph.nodes:
            origin = None if node.origin is None else capture.origins[node.origin]
            files = [] if origin is None else [capture.frames[at].file for at in origin.frames]
            if origin is None or origin.op is None or "program.py" not in str(files):
                function = None if node.kernel is None else capture.functions[node.kernel.function]
                names.append(function.name if function else node.type)
    return names
