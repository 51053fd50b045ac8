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
from cgtool.model.ledger import LedgerGraph

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
# In one piece: other processes print too.
line = lambda: f"HOOKS {json.dumps([graph[:2] for graph in graphs])}\\n"
atexit.register(lambda: print(line(), end="", flush=True))
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

BESIDE = """
import torch
from torch import nn
from torch._dynamo.utils import counters
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()).cuda()
compiled = torch.compile(model)
x = torch.randn(8, 64, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        compiled(x).square().sum().backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = compiled(x).square().sum()
    loss.backward()
graph.replay()
compiled(x + 1)
print(loss.item(), dict(counters["frames"]), dict(counters["stats"]))
"""
"""Captured by hand, compiled before: Dynamo must not compile again."""

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

CONTINUOUS = """
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, vocab_size=1024, attn_implementation="sdpa",
)
model = LlamaForCausalLM(config).cuda().to(torch.bfloat16).eval()
settings = GenerationConfig(max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=-1)
batching = ContinuousBatchingConfig(
    use_cuda_graph=True, use_async_batching=False, num_blocks=64, max_batch_tokens=256,
    q_padding_interval_size=16, kv_padding_interval_size=256,
)
prompts = [[1 + (7 * row + at) % 1000 for at in range(8 + row)] for row in range(12)]
done = model.generate_batch(
    inputs=prompts, generation_config=settings, continuous_batching_config=batching, warmup=False,
)
print(sorted(tuple(each.generated_tokens) for each in done.values()))
"""

STATIC = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, vocab_size=1024,
)
model = LlamaForCausalLM(config).cuda().to(torch.bfloat16).eval()
for rows in (1, 3):
    prompt = torch.ones(rows, 9, dtype=torch.long, device="cuda")
    text = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False,
        pad_token_id=0, eos_token_id=-1, cache_implementation="static",
    )
    print(text.tolist())
"""

LIGHTNING = """
import lightning, torch
from torch import nn

class Trained(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
        self.net = torch.compile(net, mode="reduce-overhead")

    def training_step(self, batch, _):
        torch.compiler.cudagraph_mark_step_begin()
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.last = loss.detach().clone()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

torch.manual_seed(0)
model = Trained()
rows = torch.utils.data.TensorDataset(torch.randn(480, 64), torch.randint(0, 8, (480,)))
trainer = lightning.Trainer(
    max_epochs=1, devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=16))
print(model.last.item())
"""


DISTRIBUTED = """
import os
import torch
import torch.distributed as dist
from torch import nn
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(8, 16, device="cuda")

def step():
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for number in range(5):
    x.fill_(0.1 * (number + rank))
    graph.replay()
torch.cuda.synchronize()
print(f"{rank} {loss.item()}\\n", end="", flush=True)
graph.reset()  # the group waits for graphs that have its kernels; the hooks keep the object
dist.destroy_process_group()
"""
"""Two processes, each with a GPU, and an all-reduce inside the graph."""


def output(*command: object, folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [Path.cwd(), *sys.path]))}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "text", [BY_HAND, CALLABLES, BESIDE], ids=["engine", "callables", "beside_compiled"]
)
def test_as_hooks_written_by_hand(text: str, tmp_path: Path) -> None:
    assert unplaced(run_as_hooks(text, tmp_path)) == []


def test_nodes_of_compiled_code_have_line_and_module_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A backward from Inductor's cache has no module where a line is that of several.
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    capture = run_as_hooks(COMPILED, tmp_path)
    assert unplaced(capture) == []
    lines = (tmp_path / "program.py").read_text().splitlines()
    for graph in capture.graphs:
        for node in graph.nodes:
            assert node.origin is not None
            origin = capture.origins[node.origin]
            frame = capture.frames[origin.frames[0]]
            assert frame.function == "forward"
            assert lines[frame.line - 1].strip().startswith(("h = ", "return x"))
            assert str(origin.module)[:1] in {"0", "1"}


def test_two_processes_of_torchrun(tmp_path: Path) -> None:
    """Each has the graphs that hooks of its own saw; the all-reduce is a node of the step."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    (tmp_path / "program.py").write_text(DISTRIBUTED)
    (tmp_path / "hooks.py").write_text(HOOKS)
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    plain = sorted(output(*command, "hooks.py", "program.py", folder=tmp_path).splitlines())
    hooks = [line.removeprefix("HOOKS ") for line in plain if line.startswith("HOOKS ")]
    printed = output(
        "-m", "cgtool", "run", "-o", "run.cgt", "--", sys.executable, *command, "program.py",
        folder=tmp_path,
    )  # fmt: skip
    assert sorted(printed.splitlines()) == [line for line in plain if not line.startswith("HOOKS ")]
    capture = capture_file.read(tmp_path / "run.cgt")
    assert capture.ledger is not None
    assert capture.ledger.lost == ()
    of_process = {}
    for entry in capture.ledger.graphs:
        assert entry.graph is not None
        kept = [len(capture.graphs[entry.graph].nodes), entry.replays]
        of_process.setdefault(entry.process, []).append(kept)
    assert sorted(map(json.dumps, of_process.values())) == sorted(hooks)
    assert len(hooks) == 2
    for graph in capture.graphs:
        origins = [capture.origins[node.origin] for node in graph.nodes if node.origin is not None]
        assert any("allreduce" in (origin.op or "") for origin in origins)
    assert unplaced(capture) == []


def run_as_hooks(text: str, tmp_path: Path) -> Capture:
    """What was kept of a program: the same graphs, graph by graph, as three hooks kept."""
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
    return capture


def noted(graph: LedgerGraph, name: str) -> list[float]:
    """The numbers of a name, one for each replay, least first."""
    return sorted(
        value
        for each in graph.notes
        for key, value in zip(each.names, each.values, strict=True)
        for _ in range(each.replays)
        if key == name
    )


def replayed(capture: Capture) -> list[LedgerGraph]:
    assert capture.ledger is not None
    return [graph for graph in capture.ledger.graphs if graph.uses]


def test_continuous_batching_has_sizes_and_padding(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    first, second = replayed(run_as_hooks(CONTINUOUS, tmp_path))
    assert (first.key, second.key) == ("tokens 16, cache 256", "tokens 16, cache 512")
    # The prompts have 8 to 19 tokens, 162 together, and each batch adds twelve. The first batch of
    # a size is captured: 162 tokens, and 258.
    assert noted(first, "cache") == [162 + 12 * batch for batch in range(1, 8)]
    assert noted(second, "cache") == [162 + 12 * batch for batch in range(9, 23)]
    for graph, cache in ((first, 256), (second, 512)):
        assert set(noted(graph, "tokens")) == {12}
        assert set(noted(graph, "padded_tokens")) == {16}
        assert set(noted(graph, "padded_cache")) == {cache}


def test_generate_with_a_static_cache_has_its_padding(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    capture = run_as_hooks(STATIC, tmp_path)
    for rows, graph in zip((1, 3), replayed(capture), strict=True):
        # Nine tokens of the prompt; the first two of twelve come from the prefill and a recording.
        assert set(noted(graph, "rows")) == {rows}
        assert noted(graph, "cache") == [*range(21 - graph.replays, 21)]
        # The last token is not in the cache.
        assert min(noted(graph, "padded_cache")) >= 20


def test_a_script_of_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    capture = run_as_hooks(LIGHTNING, tmp_path)
    assert [graph.key for graph in replayed(capture)] == ["0/0 forward", "0/0 backward"]


CAUGHT = """
import contextlib, sys, torch
x = torch.ones(3, device="cuda")
WAYS = {
    "item": lambda: x.sum().item(),
    "mask": lambda: x[x > 0],
    "synchronize": torch.cuda.synchronize,
}
with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
    y = x * 2
    with contextlib.suppress(RuntimeError):
        WAYS[sys.argv[1]]()
    y + 1
"""


@pytest.mark.parametrize(
    ("way", "code", "line"),
    [
        ("item", "sync-item", 5),
        ("mask", "sync-dynamic-shape-op", 6),
        ("synchronize", "finalizer-in-capture", 13),
    ],
)
@pytest.mark.parametrize("recorder", ["python", "c++"])
def test_the_op_that_ended_a_capture_though_its_error_was_caught(
    way: str, code: str, line: int, recorder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recorder == "python":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
        monkeypatch.setenv("CXX", "false")
    (tmp_path / "program.py").write_text(CAUGHT)
    output("-m", "cgtool", "run", "-o", "run.cgt", "program.py", way, folder=tmp_path)
    capture = capture_file.read(tmp_path / "run.cgt")
    (graph,) = (each for each in capture.ledger.graphs if each.failure)
    assert graph.diagnosis is not None
    assert graph.diagnosis.code == code, graph.diagnosis
    assert capture.frames[graph.diagnosis.frames[0]].line == line
    intact = "the capture was still valid after `aten::mul.Tensor` at program.py:10"
    assert (intact in graph.diagnosis.reason) == (way == "synchronize")


LONG = """
import pathlib, sys, time, torch
x = torch.ones(3, device="cuda")
def captured():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2).exp() + 1
    graph.replay()
    return y
print(captured().tolist())
folder, limit = pathlib.Path(sys.argv[1], "cgtool"), time.monotonic() + 200
while not list(folder.glob("*.so")) and time.monotonic() < limit:
    time.sleep(0.1)
print(captured().tolist())
print(captured().tolist())
"""


def test_a_program_uses_the_recorder_that_is_compiled_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "program.py").write_text(LONG)
    said = output(
        "-m", "cgtool", "run", "-o", "run.cgt", "program.py", str(tmp_path / "cache"),
        folder=tmp_path,
    )  # fmt: skip
    assert len(set(said.splitlines()[:3])) == 1
    capture = capture_file.read(tmp_path / "run.cgt")
    assert [caveat.text for caveat in capture.caveats if caveat.code == "ops-in-python"] == [
        "1 of 3 captures took several times as long as without cgtool, because their ops were "
        "recorded in Python: the recorder in C++ was not compiled yet; if this note is still "
        "there in the next run, `cgtool doctor --build` shows why"
    ]
    nodes = [
        [
            (capture.origins[node.origin].op, capture.origins[node.origin].frames)
            for node in capture.graphs[entry.graph].nodes
            if node.origin is not None
        ]
        for entry in capture.ledger.graphs
        if entry.graph is not None
    ]
    first, *later = ([(op, capture.frames[at[0]].line) for op, at in each] for each in nodes)
    assert len(first) == 3
    assert later == [first, first]


def unplaced(capture: Capture) -> list[str]:
    """The kernels that have no op, or no line of the program: in backward, that of the forward."""
    names = []
    for graph in capture.graphs:
        for node in graph.nodes:
            origin = None if node.origin is None else capture.origins[node.origin]
            placed = origin
            if origin is not None and origin.forward is not None:
                placed = capture.origins[origin.forward]
            files = [] if placed is None else [capture.frames[at].file for at in placed.frames]
            if origin is None or origin.op is None or "program.py" not in str(files):
                function = None if node.kernel is None else capture.functions[node.kernel.function]
                names.append(function.name if function else node.type)
    return names
