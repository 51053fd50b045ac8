"""``cgtool run --step`` on a GPU: programs that fault in a replay, and programs that do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cgtool.analysis.ledger_findings import ledger_findings
from cgtool.model import capture_file
from cgtool.model.capture import Capture
from cgtool.model.finding import Finding

pytestmark = pytest.mark.gpu

BEGIN = """
import torch


def captured(function):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


BIG = 1 << 24
FAR = 1 << 40
"""
TRITON = """
import triton
import triton.language as tl


@triton.jit
def shifted(p, offset, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p + i + tl.load(offset), tl.load(p + i, mask=i < n) + 1.0, mask=i < n)


p = torch.zeros(1024, device="cuda")
offset = torch.zeros(1, dtype=torch.long, device="cuda")


def step():
    z = p * 2
    shifted[(8,)](p, offset, 1024, BLOCK=128)  # <-
    return z + p


graph, result = captured(step)
"""
FAULTS = {
    "out_of_bounds": (
        BEGIN
        + TRITON
        + """
graph.replay()
offset.fill_(FAR)
graph.replay()
torch.cuda.synchronize()
""",
        ("fails in replay 2: ", "kernel shifted, grid 8, block", "in a block of 4,096 bytes"),
    ),
    "compiled": (
        BEGIN
        + """
table = torch.randn(8, 4, device="cuda")


@torch.compile(mode="reduce-overhead")
def pick(table, index):
    return table[index].relu() * 2  # <-


for call in range(6):
    index = torch.zeros(4, dtype=torch.long, device="cuda") + (call == 5) * FAR
    print(pick(table, index).sum().item())
""",
        ("kernel triton_", "argument 0: 0x"),
    ),
    "callables": (
        BEGIN
        + """
class Pick(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(8, 4, device="cuda"))

    def forward(self, index):
        return self.table[index] * 2  # <-


index = torch.zeros(4, dtype=torch.long, device="cuda")
pick = torch.cuda.make_graphed_callables(Pick(), (index,))
for step in range(3):
    pick(index + (step == 2) * FAR).sum().backward()
torch.cuda.synchronize()
""",
        ("`aten::index.Tensor`, fails in replay 3: ", "device-side assert"),
    ),
    "freed_input": (
        BEGIN
        + """
x = torch.randn(BIG, device="cuda")
graph, y = captured(lambda: x * 2)  # <-
graph.replay()
del x  # freed
torch.cuda.empty_cache()  # given back
graph.replay()
torch.cuda.synchronize()
""",
        (
            "`aten::mul.Tensor`, fails in replay 2: ",
            "in freed memory of 67,108,864 bytes",
            ", allocated at freed_input.py:{x = torch.randn(BIG},",
            ", freed at freed_input.py:{# freed},",
            ", given back at freed_input.py:{# given back}",
        ),
    ),
    "freed_output_of_a_graph": (
        BEGIN
        + """
x = torch.randn(BIG, device="cuda")
first, a = captured(lambda: x.sin())  # made
second, b = captured(lambda: a.cos())  # <-
first.replay()
second.replay()
del first, a  # freed
torch.cuda.empty_cache()  # given back
second.replay()
torch.cuda.synchronize()
""",
        (
            "`aten::cos`, fails in replay 2: ",
            "in freed memory of 67,108,864 bytes",
            ", allocated at freed_output_of_a_graph.py:{# made},",
            ", freed at freed_output_of_a_graph.py:{# freed},",
            ", given back at freed_output_of_a_graph.py:{# given back}",
        ),
    ),
    "on_a_side_stream": (
        BEGIN
        + """
table = torch.randn(8, 4, device="cuda")
index = torch.zeros(4, dtype=torch.long, device="cuda")
side = torch.cuda.Stream()


def step():
    current = torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        picked = table[index]  # <-
    other = table * 3
    current.wait_stream(side)
    return picked + other[:4]


graph, result = captured(step)
index.fill_(FAR)
try:
    graph.replay()
    torch.cuda.synchronize()
except RuntimeError as error:
    print("the program got:", error)
raise SystemExit(7)
""",
        ("`aten::index.Tensor`, fails in replay 1: ", "device-side assert"),
    ),
}


def run(tmp_path: Path, name: str, text: str) -> tuple[subprocess.CompletedProcess[str], Capture]:
    (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "cgtool", "run", "--step", "-o", "a.cgt", f"{name}.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    print(done.stdout[-3000:], done.stderr[-6000:])  # shown if the test fails
    return done, capture_file.read(tmp_path / "a.cgt")


def faults_of(capture: Capture) -> list[Finding]:
    return [each for each in ledger_findings(capture) if each.code == "node-faults"]


def line_with(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


@pytest.mark.parametrize("name", FAULTS)
def test_the_node_that_fails_is_named(tmp_path: Path, name: str) -> None:
    text, expected = FAULTS[name]
    done, capture = run(tmp_path, name, text)
    (finding,) = faults_of(capture)
    assert [frame.line for frame in finding.frames][:1] == [line_with(text, "# <-")], finding
    all_said = "\n".join((finding.reason, *finding.evidence))
    for part in expected:
        before, _, rest = part.partition("{")
        mark, _, after = rest.partition("}")
        wanted = f"{before}{line_with(text, mark)}{after}" if mark else part
        assert wanted in all_said, (wanted, all_said)
    said = [line for line in done.stderr.splitlines() if line.startswith("error: node ")]
    assert len(said) == 1, said
    assert f" ({name}.py:{line_with(text, '# <-')} in " in said[0], said
    # The program gets PyTorch's error, and ends as it would.
    if name == "on_a_side_stream":
        assert "the program got: CUDA error: device-side assert triggered" in done.stdout
        assert done.returncode == 7
    else:
        assert "CUDA error: " in done.stderr
        assert done.returncode != 0
    assert capture.ledger is not None
    assert capture.ledger.exit_status == done.returncode


def test_what_failed_before_a_replay_is_not_a_node_of_it(tmp_path: Path) -> None:
    text = BEGIN + TRITON + (
        "graph.replay()\noffset.fill_(FAR)\n"
        "shifted[(8,)](p, offset, 1024, BLOCK=128)\ngraph.replay()\ntorch.cuda.synchronize()\n"
    )  # fmt: skip
    done, capture = run(tmp_path, "before", text)
    assert faults_of(capture) == []
    assert "illegal memory access" in done.stderr
    assert done.returncode != 0


NO_FAULT = (
    BEGIN
    + """
import ctypes, hashlib, threading

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 8)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
x = torch.randn(4, 16, 64, device="cuda")
host = torch.zeros(4, 16, 8, pin_memory=True)
sides = [torch.cuda.Stream(), torch.cuda.Stream()]
own = torch.Generator("cuda").manual_seed(3)


def train():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def serve():
    current = torch.cuda.current_stream()
    parts = []
    for side in sides:
        side.wait_stream(current)
        with torch.cuda.stream(side):
            parts.append(torch.nn.functional.dropout(x, 0.3).sin())
    noise = torch.rand_like(x)
    for side in sides:
        current.wait_stream(side)
    with torch.no_grad():
        out = model(parts[0] + parts[1] + noise)
    host.copy_(out, non_blocking=True)
    return out


def drawing():
    return torch.empty(1000, device="cuda").normal_(generator=own)


libc = ctypes.CDLL(None)
semaphore = ctypes.create_string_buffer(32)
libc.sem_init(semaphore, 0, 0)


def calls_the_host():
    # The one of cuda-bindings frees its arguments after the first call.
    post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    assert launch(stream, post, ctypes.c_void_p(ctypes.addressof(semaphore))) == 0
    return x + 1


graphs = {function.__name__: captured(function) for function in (train, serve, calls_the_host)}
graph = torch.cuda.CUDAGraph()
graph.register_generator_state(own)
with torch.cuda.graph(graph):
    graphs["drawing"] = graph, drawing()
graphed = torch.cuda.make_graphed_callables(torch.nn.Linear(64, 64).cuda(), (x,))


@torch.compile(mode="reduce-overhead")
def compiled(x):
    return torch.nn.functional.dropout(x.sin(), 0.2) * 2


def show(name, *tensors):
    data = b"".join(each.detach().cpu().contiguous().numpy().tobytes() for each in tensors)
    print(name, hashlib.sha1(data).hexdigest(), flush=True)


for step in range(6):
    x.copy_(torch.randn(4, 16, 64, device="cuda"))
    torch.cuda.synchronize()
    for name, (graph, result) in graphs.items():
        with torch.cuda.stream(sides[step % 2]) if step > 3 else torch.cuda.stream(None):
            graph.replay()
        torch.cuda.synchronize()
        show(name, result, host)
    y = graphed(x)
    y.square().sum().backward()
    show("graphed", y, *(each.grad for each in graphed.parameters()))
    show("compiled", compiled(x))
    show("eager", torch.rand(10, device="cuda"), torch.rand(10, device="cuda", generator=own))
thread = threading.Thread(target=graphs["serve"][0].replay)
thread.start(), thread.join()
torch.cuda.synchronize()
show("thread", graphs["serve"][1])
show("state", *model.parameters(), *(v for s in optimizer.state.values() for v in s.values()))
value = ctypes.c_int()
libc.sem_getvalue(semaphore, ctypes.byref(value))
print("host calls", value.value)
"""
)


def test_replays_compute_the_same_bits(tmp_path: Path) -> None:
    """Dropout and own generators, streams, copies to the host, host functions, compiled code."""
    done, capture = run(tmp_path, "same", NO_FAULT)
    plain = subprocess.run(
        [sys.executable, "same.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, plain.returncode) == (0, 0), (plain.stderr, done.stderr)
    pairs = zip(plain.stdout.splitlines(), done.stdout.splitlines(), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
    assert plain.stdout.splitlines()[-1] == "host calls 7"
    assert faults_of(capture) == []
    texts = {caveat.code: caveat.text for caveat in capture.caveats}
    assert "ran node by node" in texts["stepped"], texts
    assert "not-stepped" not in texts, texts
