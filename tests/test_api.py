"""The Python API: the examples of docs/api.md, and objects that show themselves."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from msgspec import structs

import cgtool
from cgtool.analysis.ledger_report import ledger_report
from cgtool.api import LoadedCapture, NodeRow, Rows
from tests.builders import hostile, program, small, timed, timed_serving
from tests.forked_workers import run_cgtool, workers  # noqa: F401
from tests.recorded import ROOT

SAMPLES = ROOT / "samples" / "captures"
PAGE = (ROOT / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"^```python(?: (\w+))?\n(.*?)^```", PAGE, re.M | re.S)
OF_JSON = dict(re.findall(r"^```\w+ (jq|duckdb|pandas-json)\n(.*?)^```", PAGE, re.M | re.S))
"""What reads the JSON of ``dump``."""


@pytest.fixture(autouse=True)
def _forked(workers):  # noqa: F811
    """Workers of the API in this process are forked."""


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for needs, code in BLOCKS:
        if not needs or find_spec(needs) is not None:
            exec(compile(code, "docs/api.md", "exec"), names)
    shown = capsys.readouterr().out.splitlines()
    assert set(shown[:2]) <= set(PAGE.splitlines())
    assert "<check: 0 hazards> []" in shown


@pytest.fixture
def train(tmp_path, monkeypatch):
    """The JSON of a profiled capture in the current folder, and the time of each op in it."""
    file = SAMPLES / "profile-transformer.cgt"
    run_cgtool("dump", file, "--json", "-o", tmp_path / "train.json", cwd=ROOT)
    monkeypatch.chdir(tmp_path)
    times = Counter()
    for row in cgtool.load(file).nodes:
        times[row.op] += row.duration_ns or 0
    return times


@pytest.mark.skipif(which("jq") is None, reason="jq is not installed")
def test_jq(train):
    done = subprocess.run(["bash", "-c", OF_JSON["jq"]], capture_output=True, text=True)
    counts = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    nodes = cgtool.load(SAMPLES / "profile-transformer.cgt").nodes
    expected = Counter(f"{row.op or ''}\t{row.module or ''}" for row in nodes)
    assert {text: int(count) for count, text in counts} == expected


def test_duckdb(train):
    rows = pytest.importorskip("duckdb").sql(OF_JSON["duckdb"]).fetchall()
    assert [(op, int(ns or 0)) for op, ns in rows] == sorted(
        train.items(), key=lambda item: -item[1]
    )


def test_pandas_of_json(train):
    pytest.importorskip("pandas")
    names: dict[str, Any] = {}
    exec(OF_JSON["pandas-json"], names)
    train.pop(None, None)
    assert names["times"].to_dict() == train
    assert set(names["frame"]["graph name"]) == {"forward", "backward"}


def test_a_data_frame():
    pytest.importorskip("pandas")
    frame = cgtool.load(SAMPLES / "mlp.cgt").nodes.to_pandas()
    assert list(frame.columns) == list(NodeRow.__struct_fields__)


def test_a_data_frame_keeps_every_digit_and_its_columns():
    pandas = pytest.importorskip("pandas")
    row = cgtool.load(SAMPLES / "mlp.cgt").nodes[0]
    start = 1_764_000_000_123_456_789
    rows = Rows(
        [structs.replace(row, start_ns=value, line=None) for value in (start, None)],
        NodeRow,
        "node",
    )
    frame = rows.to_pandas()
    assert frame.start_ns[0] == start and frame.start_ns.isna().tolist() == [False, True]
    assert str(frame.start_ns.dtype) == "Int64"
    assert list(rows[2:].to_pandas().columns) == list(frame.columns)
    assert isinstance(frame.op.dtype, pandas.StringDtype)
    for some in (frame, rows[2:].to_pandas()):
        untyped = [name for name in some if some[name].dtype == object]
        assert untyped == ["grid", "block"]
        assert str(some.line.dtype) == str(some.duration_ns.dtype) == "Int64"
    pools = cgtool.load(SAMPLES / "mlp.cgt").pools[:0].to_pandas()
    assert str(pools.reserved_bytes.dtype) == "Int64"


def test_without_pandas_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError) as raised:
        cgtool.load(SAMPLES / "mlp.cgt").nodes.to_pandas()
    assert raised.value.__notes__ == ["fix: pip install pandas; to_dicts() needs nothing"]


def test_what_is_shown_of_one():
    capture = cgtool.load(SAMPLES / "mlp.cgt")
    run = cgtool.load(ROOT / "tests" / "gold" / "html" / "engine.cgt")
    (found, *_), (pool, *_) = run.findings, run.pools
    assert repr(capture.pools[0]).startswith("<pool graphs: ")
    assert repr(pool) == "<pool 0 of process 0: 5 graphs, 36.0 MiB reserved, 33.0 MiB used>"
    assert repr(found).startswith("<note graph-never-replayed at engine.py:49: 1 of 5 graphs ")


def test_importing_cgtool_imports_nothing_that_takes_time():
    code = "import sys; before = set(sys.modules); import cgtool; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    names = {name for name in done.stdout.split() if not name.startswith(("importlib", "_"))}
    assert names - {"types", "warnings"} == {"cgtool"}


def test_loading_imports_no_torch():
    code = (
        f"import cgtool, sys; c = cgtool.load({str(SAMPLES / 'mlp.cgt')!r}); len(c.nodes); str(c);"
        "print(sorted({'torch', 'numpy', 'cuda'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_rows_of_nodes():
    capture = cgtool.load(SAMPLES / "train_step.cgt")
    (graph,) = capture.graphs
    assert len(graph.nodes) == len(capture.nodes) == 55
    assert capture.graph("step") is graph
    with pytest.raises(
        KeyError, match="0 graphs with name='forward'; there are:\n  name='step', 55 nodes"
    ):
        capture.graph("forward")
    assert repr(capture.nodes[10:12]) == "<2 nodes>"
    backward = [row for row in capture.nodes if row.forward_line is not None]
    assert all(row.forward_op for row in backward)
    dicts = capture.nodes.to_dicts()
    assert [row["id"] for row in dicts] == list(range(len(dicts)))
    assert set(dicts[0]) == set(NodeRow.__struct_fields__)
    assert graph.nodes_ns is None
    assert LoadedCapture(capture.path, timed(small())).graphs[0].nodes_ns > 0


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: cgtool.load(3), "load() takes the path of a .cgt file, not int"),
        (lambda: cgtool.load(b"x.cgt"), "load() takes the path of a .cgt file, not bytes"),
        (
            lambda: cgtool.diff(SAMPLES / "mlp.cgt", None),
            "diff() takes the path of a .cgt file, or what load() returned, not NoneType",
        ),
        (
            lambda: cgtool.report(SAMPLES / "mlp.cgt", file=3),
            "report(file=...) takes the path of the page, not int",
        ),
        (
            lambda: cgtool.check(3),
            "check() takes an ENTRY (file.py:name) or the path of a script, not int",
        ),
        (
            lambda: cgtool.recording(3).__enter__(),
            "recording() takes the path of a file, not int",
        ),
    ],
)
def test_what_is_no_path(call, expected):
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == expected


def test_findings_of_a_check(tmp_path):
    (tmp_path / "m.py").write_text(
        "import torch\ndef build(device):\n    def step(x):\n        return x * x.sum().item()\n"
        "    return step, (torch.ones(4, device=device),)\n"
    )
    result = cgtool.check(f"{tmp_path}/m.py:build", device="simulated")
    first = result.findings[0]
    assert (first.code, first.severity, first.place.line) == ("sync-item", "error", 4)
    assert all(finding.fix for finding in result.findings)


AT_HAND = """
import cgtool, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
rate = torch.tensor(1e-3)
optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
x, target = torch.randn(4, 8), torch.randn(4, 1)
seen = []

def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    seen.append(loss)
    return loss

def state():
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*map(str, [model.state_dict(), gradients, optimizer.state_dict(), seen]),
            torch.get_rng_state().tolist(), x.device, torch.cuda.is_available(), torch.compile]

before = state()
captured = cgtool.capture(model, x)
print(repr(captured), captured.nodes[0].module, captured.graph("backward").nodes[0].forward_line)
print(repr(cgtool.capture(train_step)))
print(repr(cgtool.verify(nn.functional.mse_loss, model(x).detach(), target=target)))
result = cgtool.verify(train_step)
print(result.equal, [each.code for each in result.findings], state() == before)
captured.save("model.cgt")

def reads(x):
    return x * x.sum().item()

count = 0
def counts(x):
    global count
    count += 1
    return x * count

for call in (cgtool.capture, cgtool.verify):
    try:
        call(reads, x)
    except cgtool.CgtoolError as error:
        print(error.failure.findings[0].code, x.device, error.__cause__)
        print(error)
found = cgtool.verify(counts, x)
print(found.equal, [each.code for each in found.findings], count)
with cgtool.recording("run.cgt", device="simulated"):
    try:
        cgtool.capture(model, x)
    except cgtool.CgtoolError as error:
        print(error)
"""


def test_a_function_at_hand(tmp_path):
    """In the process that has it, which then is as it was before."""
    (tmp_path / "cell.py").write_text(AT_HAND)
    done = subprocess.run(
        [sys.executable, "cell.py"], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = AT_HAND[: AT_HAND.index("    return x * x.sum")].count("\n") + 1
    refused = [
        "sync-item cpu None",
        "reading a tensor value on the host (.item(), int(), float()) is not permitted when a "
        "stream is capturing",
        f"at {tmp_path / 'cell.py'}:{line} in reads",
        "why: the host would wait for a stream that is capturing, which CUDA refuses "
        "(cudaErrorStreamCaptureUnsupported, 900)",
        "fix: keep the value on the device, where arithmetic and `torch.where` take a tensor, and "
        "read it after the replay; if Python must branch on it, split the graph there",
    ]
    assert done.stdout.splitlines() == [
        "<capture Sequential: 2 graphs, 9 nodes, simulated> 0 26",
        "<capture train_step: 1 graph, 32 nodes, simulated>",
        "<verify: verified: 5 comparisons, replay equals eager>",
        "False ['python-side-effects-skipped'] True",
        *refused,
        *refused,
        "False ['cpu-state-step-counter'] 0",
        "this process is being recorded, so it cannot capture a function itself",
        "fix: call it outside `cgtool run` and outside the block of cgtool.recording",
    ]
    assert (
        repr(cgtool.load(tmp_path / "model.cgt").graphs[0]) == "<graph forward: 3 nodes, 2 edges>"
    )


def test_an_entry_in_a_process_of_its_own(tmp_path):
    (tmp_path / "m.py").write_text(
        "import torch\ndef build(device):\n    return torch.neg, (torch.ones(4, device=device),)\n"
    )
    entry = f"{tmp_path}/m.py:build"
    captured = cgtool.capture(entry, device="simulated")
    assert [graph.name for graph in captured.graphs] == ["forward"]
    saved = cgtool.load(captured.save(tmp_path / "m.cgt"))
    assert saved.capture == captured.capture
    assert cgtool.verify(entry, device="simulated", replays=1, trials=0).equal
    with pytest.raises(cgtool.CgtoolError, match=r"verify.*replays"):
        cgtool.verify(entry, replays=0)
    with pytest.raises(TypeError, match=r"capture.. has no option 'devic'"):
        cgtool.capture(entry, devic="simulated")
    with pytest.raises(TypeError, match="an ENTRY takes no arguments"):
        cgtool.verify(entry, 3)
    with pytest.raises(TypeError, match=r"a function, a module or an ENTRY .* not int"):
        cgtool.capture(3)
    with pytest.raises(cgtool.CgtoolError, match="it has no parameter `x`") as raised:
        cgtool.capture(len, x=3)
    assert raised.value.failure.fix


def test_the_types_of_the_api(tmp_path):
    """A program of a user has exactly one error, the last one."""
    pytest.importorskip("mypy")
    code = (
        "import cgtool\n"
        "from cgtool.api import CheckResult, LoadedCapture, LoadedGraph, NodeRow, Rows\n"
        "from cgtool.api import Relation, Selection\n"
        "capture: LoadedCapture = cgtool.load('x.cgt')\n"
        "graph: LoadedGraph = capture.graph('forward')\n"
        "nodes: Rows[NodeRow] = graph.nodes[1:]\n"
        "size: int = capture.pools[0].reserved_bytes\n"
        "gemms: Selection = graph.kernels('*gemm*', stream=1)(line='m.py:3')\n"
        "order: Relation = gemms.before(graph.ops('add'))\n"
        "kinds: list[str] = [each.kind for each in gemms.edges_to(graph.nodes)]\n"
        "count: int = gemms.count\n"
        "found: CheckResult = cgtool.check('m.py:build')\n"
        "lines: list[int] = [each.place.line for each in found.findings if each.place]\n"
        "print(cgtool.diff(capture, 'y.cgt').report.different)\n"
        "same: bool | None = cgtool.verify(len, []).equal\n"
        "graph = cgtool.capture('m.py:build', device='simulated').graph('forward')\n"
        "with cgtool.recording('run.cgt') as run:\n"
        "    cgtool.note(batch=3)\n"
        "print(run.path, size.undefined)\n"
    )
    program = tmp_path / "program_with_types.py"
    program.write_text(code)
    # With the options of CI, which then finds most of cgtool in mypy's cache.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", program], capture_output=True, text=True, cwd=ROOT
    )
    said = done.stdout
    assert said.count("error:") == 1, said
    assert '"int" has no attribute "undefined"' in said


def test_pools_are_those_of_the_command():
    pools = cgtool.load(SAMPLES / "transformer.cgt").pools
    done = run_cgtool("pools", SAMPLES / "transformer.cgt", "--format", "json", cwd=ROOT)
    assert pools.to_dicts()[0]["live_bytes"] == json.loads(done.stdout)["pools"][0]["live_bytes"]
    served = LoadedCapture("run.cgt", timed_serving())
    assert [row.reserved_bytes for row in served.pools] == [
        row.reserved_bytes for row in ledger_report(served.capture).pools
    ]
    assert served.pools.to_dicts()[0]["reserved_bytes"] > 0
    assert "reserved_bytes" in served.pools._repr_html_()


def test_a_program_shows_its_ledger():
    run = LoadedCapture("run.cgt", program([]))
    assert "the program captured no CUDA graph" in str(run)
    assert run.findings == ()


def test_pages_are_those_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(SAMPLES)
    files = ["mlp.cgt", "gan.cgt"]
    for given in (files[:1], files):
        run_cgtool("report", *given, "-o", tmp_path / "page.html", "-q", cwd=SAMPLES)
        expected = (tmp_path / "page.html").read_bytes()
        assert cgtool.report(*given, file=tmp_path / "a.html").read_bytes() == expected
        loaded = [cgtool.load(file) for file in given]
        assert cgtool.report(*loaded, file=tmp_path / "b.html").read_bytes() == expected
    assert loaded[0].report(tmp_path / "c.html") == tmp_path / "c.html"
    assert b"<!doctype html>" in (tmp_path / "c.html").read_bytes()[:20]


def test_a_page_does_not_replace_its_capture(tmp_path):
    (tmp_path / "a.cgt").write_bytes((SAMPLES / "mlp.cgt").read_bytes())
    with pytest.raises(cgtool.CgtoolError, match="would overwrite"):
        cgtool.report(tmp_path / "a.cgt", file=tmp_path / "a.cgt")


def test_differences():
    same = cgtool.diff(SAMPLES / "mlp.cgt", SAMPLES / "mlp.cgt")
    assert not same.report.different
    assert same.to_dict()["schema"] == "cgtool-diff"
    assert str(same).startswith(same.summary)
    loaded = cgtool.load(SAMPLES / "mlp.cgt")
    assert cgtool.diff(loaded, SAMPLES / "mlp.cgt").to_dict() == same.to_dict()


def test_results_can_be_pickled(tmp_path):
    """A program may compare captures in several processes."""
    model = tmp_path / "model.py"
    model.write_text("def f(x):\n    return x * 2\n")
    found = cgtool.check(f"{model}:f", device="simulated", input="x=float32[4]")
    capture = cgtool.load(SAMPLES / "mlp.cgt")
    for thing in (capture, cgtool.diff(capture, SAMPLES / "transformer.cgt"), found):
        assert str(pickle.loads(pickle.dumps(thing))) == str(thing)
    assert len(pickle.loads(pickle.dumps(capture.nodes))) == len(capture.nodes)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "a.cgt").write_text("no")
    with pytest.raises(cgtool.CgtoolError, match="is not a capture file") as raised:
        cgtool.load(tmp_path / "a.cgt")
    assert str(raised.value).endswith(f"\nfix: {raised.value.failure.fix}")


@pytest.mark.parametrize(
    ("entry", "options", "problem"),
    [
        ("m.py:f", {"device": "tpu"}, "device='tpu': expected cuda, cuda:N or simulated"),
        ("m.py:f", {"pool": "x"}, "pool='x': expected shared or separate"),
        ("m.py:f", {"timeout": "5"}, "timeout='5': expected a number of seconds above 0"),
        ("m.py:f", {"timeout": 0}, "timeout=0: expected a number of seconds above 0"),
        ("m.py:f", {"warmup_iters": -1}, "warmup_iters=-1: expected an integer of at least 0"),
        ("m.py:f", {"input": 3}, "input=3: expected text, or several texts"),
        ("m.py:f", {"input": "x=float32[4]"}, "m.py: no such file"),
        ("m.cgt", {}, "m.cgt is a saved capture: there is no code to check"),
        (Path("m.py"), {}, "cannot read the script 'm.py': No such file or directory"),
        ("", {}, "cannot read the script '': Is a directory"),
    ],
)
def test_what_cannot_be_checked(entry, options, problem):
    with pytest.raises(cgtool.CgtoolError) as raised:
        cgtool.check(entry, **{"device": "simulated", **options})
    assert raised.value.failure.message == problem
    assert raised.value.failure.fix or options


def test_an_option_that_does_not_exist():
    with pytest.raises(TypeError, match="no option 'devic'; did you mean device"):
        cgtool.check("m.py:f", devic="simulated")


def test_hostile_names_are_inert_in_a_notebook():
    capture = LoadedCapture("x.cgt", hostile())
    html = capture.nodes._repr_html_() + capture._repr_html_() + capture.pools._repr_html_()
    assert "<script" not in html
    tags = set(re.findall(r"<[^>]*>", html))
    known = r"</?(table|thead|tbody|tr|th|td|p|pre)>"
    assert [tag for tag in tags if not re.fullmatch(known, tag)] == []


def test_a_notebook():
    """Where nbclient and ipykernel are installed."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    first = f"import cgtool; capture = cgtool.load({str(SAMPLES / 'mlp.cgt')!r}); capture"
    cells = [nbformat.v4.new_code_cell(code) for code in (first, "capture.nodes", "capture.pools")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(ROOT)}}).execute()
    shown = [cell.outputs[0].data["text/html"] for cell in notebook.cells]
    assert shown[0].startswith("<pre>") and "forward" in shown[0]
    assert [html.partition(">")[0] for html in shown[1:]] == ["<table"] * 2


def test_a_table_of_many_rows_is_cut():
    rows = Rows(
        [structs.replace(row, id=7) for row in cgtool.load(SAMPLES / "gan.cgt").nodes],
        NodeRow,
        "node",
    )
    html = rows._repr_html_()
    assert html.count("<tr>") == 21
    assert html.endswith(f"<p>{len(rows) - 20} more nodes</p>")
