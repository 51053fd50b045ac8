"""`cgtool debug` and `verify --orders` on the simulated device."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from cgtool.devices.stepping import Stepper
from cgtool.jobs.debug import values_at
from tests.forked_workers import run_cgtool

STREAMS = """
import torch


def build(device):
    side, weight = torch.cuda.Stream(), torch.randn(5, 5, device=device)
    total = torch.zeros(4, 5, device=device)

    def forward(x):
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            y = x @ weight
            noise = torch.rand_like(y)
        z = x.sin()
        {early}
        z = z + y * 2
        {late}
        total.add_(z)
        return z + noise

    return forward, (torch.randn(4, 5, device=device),)
"""
JOIN = "current.wait_stream(side)"
JOINED = STREAMS.format(early=JOIN, late="pass")
NOT_JOINED = STREAMS.format(early="pass", late=JOIN)


def run(tmp_path, source, command, *arguments):
    (tmp_path / "entry.py").write_text(source)
    options = ("--device", "simulated", "--format", "json", *arguments)
    done = run_cgtool(command, "entry.py:build", *options, cwd=tmp_path, timeout=300)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("command", ["debug", "verify"])
def test_a_missing_edge_is_found_by_other_orders(tmp_path, command):
    orders = ("--orders", "8")
    code, report = run(tmp_path, NOT_JOINED, command, *orders)
    (finding,) = (each for each in report["findings"] if each["severity"] == "error")
    assert (code, finding["code"]) == (1, "stream-race-in-capture")
    assert finding["line"] == 1 + NOT_JOINED.splitlines().index("        z = z + y * 2")
    assert "`aten::mm` on stream 1 at entry.py:13" in finding["reason"]
    code, report = run(tmp_path, JOINED, command, *orders)
    assert (code, report["findings"]) == (0, [])
    assert any("other orders" in each for each in report["looked_at"])


INDEXED = """
import torch


def build(device):
    side, table = torch.cuda.Stream(), torch.ones(4, 8, device=device)

    def forward(x):
        index = x * 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            index.remainder_(4)
        result = table.index_select(0, index)
        torch.cuda.current_stream().wait_stream(side)
        return result * 2

    return forward, (torch.arange(4, device=device) + 100,)
"""


@pytest.mark.parametrize("command", ["debug", "verify"])
def test_an_order_in_which_an_op_fails_shows_a_missing_edge(tmp_path, command):
    code, report = run(tmp_path, INDEXED, command, "--orders", "2")
    (finding,) = (each for each in report["findings"] if each["severity"] == "error")
    assert (code, finding["code"]) == (1, "stream-race-in-capture")
    assert finding["line"] == 1 + INDEXED.splitlines().index(
        "        result = table.index_select(0, index)"
    )
    assert "fails in another order that the edges allow: index out of range" in finding["reason"]


COUNTED = """
import torch


def build(device):
    table = torch.ones(6, 8, device=device)
    count = torch.zeros(1, dtype=torch.long, device=device)

    def forward(x):
        result = table.index_select(0, count) + x
        count.add_(1)
        return result

    return forward, (torch.ones(8, device=device),)
"""


def test_an_op_that_fails_in_a_later_replay_is_named(tmp_path):
    code, report = run(tmp_path, COUNTED, "debug", "--replays", "9")
    (finding,) = report["findings"]
    assert (code, finding["code"]) == (4, "node-faults")
    assert "node 0 of forward, `aten::index_select`, fails in replay 4: index" in finding["reason"]
    assert len(report["values"]) == 3


def test_replays_are_stepped(tmp_path):
    code, report = run(tmp_path, JOINED, "debug", "--replays", "2")
    assert (code, report["findings"]) == (0, [])
    assert report["looked_at"] == ["7 nodes of forward, 2 replays node by node"]


def test_a_graph_without_branches_has_no_other_order(tmp_path):
    chain = "import torch\n\ndef build(device):\n    return torch.nn.Linear(4, 4).to(device), (\n"
    source = chain + "        torch.ones(2, 4, device=device),)\n"
    _, report = run(tmp_path, source, "verify")
    assert not any("orders" in each for each in report["looked_at"])


MODEL = """
import torch


def build(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model.to(device), (torch.linspace(-1, 1, 12, device=device).reshape(3, 4),)
"""


def test_values_are_those_of_the_modules_in_eager(tmp_path):
    _, report = run(tmp_path, MODEL, "debug")
    names: dict[str, object] = {}
    exec(MODEL, names)
    model, (x,) = names["build"]("cpu")
    seen = {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda _m, _a, out, name=name: seen.update({name: out}))
    model(x)
    forward = {each["module"]: each for each in report["values"] if each["graph"] == "forward"}
    assert forward.keys() == seen.keys()
    for name, out in seen.items():
        (found,) = forward[name]["tensors"]
        assert found["shape"] == list(out.shape)
        assert found["minimum"] == pytest.approx(out.min().item())
        assert found["maximum"] == pytest.approx(out.max().item())
        assert found["norm"] == pytest.approx(out.norm().item())


DEEP = MODEL.replace(
    "    return",
    """    for name in ("h", "transformer", "model"):
        model = torch.nn.ModuleDict({name: model})
        model.forward = model[name].forward
    return""",
)


def test_the_table_has_as_many_levels_as_fit(tmp_path):
    (tmp_path / "entry.py").write_text(DEEP)
    shown = []
    for options in ([], ["--depth", "1"]):
        done = run_cgtool(
            "debug", "entry.py:build", "--device", "simulated", "--format", "csv",
            "--table", "values", *options, cwd=tmp_path, timeout=300,
        )  # fmt: skip
        rows = list(csv.DictReader(done.stdout.splitlines()))
        shown.append({row["module"] for row in rows if row["graph"] == "forward"})
    assert shown == [{f"model.transformer.h.{at}" for at in range(3)}, {"model"}]


NAN = """
import torch


def build(device):
    x = torch.linspace(-1, 1, 8, device=device)
    mask = torch.full((8,), float("-inf"), device=device)

    def step():
        scores = torch.softmax(x + torch.where(x > 0, 0.0, mask), 0)
        logs = (x - 2).log()
        return (scores * logs).sum()

    return step
"""


def test_the_first_nan_is_named_and_masks_are_not(tmp_path):
    code, report = run(tmp_path, NAN, "debug")
    (finding,) = report["findings"]
    assert (code, finding["code"]) == (1, "first-nan")
    assert finding["line"] == 1 + NAN.splitlines().index("        logs = (x - 2).log()")
    assert "8 of 8 numbers" in finding["reason"]
    assert finding["phase"] == "capture step"
    read = [note for note in finding["evidence"] if note.startswith("reads out of node")]
    assert [("aten::sub" in note, "least -3, largest -1" in note) for note in read] == [
        (True, True)
    ]
    code, report = run(tmp_path, NAN.replace("x - 2", "x + 2"), "debug")
    assert (code, report["findings"]) == (0, [])
    assert any(tensor.get("infinities") for each in report["values"] for tensor in each["tensors"])


FROZEN = """
import torch


def build(device):
    weight = torch.linspace(-1, 1, 16, device=device).reshape(4, 4)
    calls = {"n": 0}

    def step(x):
        calls["n"] += 1
        y = torch.nn.functional.dropout(x @ weight, 0.5)
        y = y * calls["n"]
        return y.softmax(-1)

    return step, (torch.ones(2, 4, device=device),)
"""


def test_the_first_op_that_differs_from_eager_is_named(tmp_path):
    options = "debug", "--against", "eager", "--seed", "0"
    code, report = run(tmp_path, FROZEN, *options)
    (finding,) = report["findings"]
    assert (code, finding["code"]) == (1, "differs-from-eager")
    assert finding["line"] == 1 + FROZEN.splitlines().index('        y = y * calls["n"]')
    assert "node 2 of forward, `aten::mul.Tensor`" in finding["reason"]
    assert "in replay 2" in finding["reason"] and "of 8 numbers differ" in finding["reason"]
    assert finding["evidence"][0] == "eager is given other=5, the graph has kept 4"
    right = FROZEN.replace('calls = {"n": 0}', "calls = torch.zeros((), device=device)")
    right = right.replace('calls["n"] += 1', "calls.add_(1)").replace('calls["n"]', "calls")
    code, report = run(tmp_path, right, *options)
    assert (code, report["findings"]) == (0, [])
    assert report["looked_at"][-1] == "what each op writes compared with eager, twice for its noise"


def test_an_op_that_only_eager_runs_is_named(tmp_path):
    source = FROZEN.replace(
        'y = y * calls["n"]', 'if calls["n"] % 5 == 0:\n            y = y.relu()'
    )
    _, report = run(
        tmp_path, source, "debug", "--against", "eager", "--replays", "5", "--seed", "0"
    )
    (finding,) = report["findings"]
    assert finding["line"] == 1 + source.splitlines().index("            y = y.relu()")
    assert "eager runs aten::relu, the capture ran aten::_softmax" in finding["reason"]


COND = """
import torch


def build(device):
    flag = torch.ones((), dtype=torch.bool, device=device)

    def forward(x):
        return torch.cond(flag, torch.sin, torch.cos, (x,))

    return forward, (torch.ones(4, 5, device=device),)
"""


def test_a_condition_that_is_read_on_the_host_is_refused(tmp_path):
    code, report = run(tmp_path, COND, "debug")
    assert code == 4
    assert "`torch.cond`" in report["error"]["message"]


def saved(tmp_path, name, source):
    """A capture with the values of an entry."""
    run(tmp_path, source, "debug", "--replays", "1", "--values", name)
    return name


def diff(tmp_path, *arguments):
    done = run_cgtool("diff", *arguments, "--format", "json", cwd=tmp_path, timeout=300)
    return done.returncode, json.loads(done.stdout)


def test_values_are_saved_and_shown_again(tmp_path):
    _, report = run(tmp_path, MODEL, "debug", "--values", "a.cgt")
    for command, keys in [
        (["show", "a.cgt", "--format", "json"], lambda shown: shown["values"]),
        (
            ["dump", "a.cgt", "--json"],
            lambda shown: [each for graph in shown["graphs"] for each in graph["nodes"]],
        ),
    ]:
        done = run_cgtool(*command, cwd=tmp_path, timeout=300)
        tensors = [each.get("tensors") or each["values"] for each in keys(json.loads(done.stdout))]
        assert tensors == [each["tensors"] for each in report["values"]]


def test_diff_names_the_first_op_that_writes_other_values(tmp_path):
    a = saved(tmp_path, "a.cgt", MODEL)
    assert diff(tmp_path, a, saved(tmp_path, "same.cgt", MODEL))[0] == 0
    other = "    with torch.no_grad():\n        model[2].bias[1] += 1e-6\n    return model"
    code, report = diff(
        tmp_path, a, saved(tmp_path, "b.cgt", MODEL.replace("    return model", other))
    )
    first, values = report["values"]["changes"][0], report["values"]
    assert (code, first["op"], first["module"], values["inexact"]) == (1, "addmm", "2", None)
    assert not any(each["beyond_rounding"] for each in values["changes"])
    assert "values differ from addmm" in report["summary"]
    assert "A parameter, an input or a seed" in values["summary"]


def test_other_types_are_compared_up_to_rounding(tmp_path):
    a = saved(tmp_path, "a.cgt", MODEL)
    half = MODEL.replace("to(device), (", "to(device).half(), (").replace("4),)", "4).half(),)")
    _, report = diff(tmp_path, a, saved(tmp_path, "half.cgt", half))
    assert report["values"]["inexact"] == "float32 in A is float16 in B"
    assert (report["values"]["first"], report["different"]) == (None, True)
    assert 0 < max(each["relative"] for each in report["values"]["changes"]) < 0.01
    scaled = half.replace("    return", "    model[2].weight.data *= 1.5\n    return")
    code, report = diff(tmp_path, a, saved(tmp_path, "scaled.cgt", scaled))
    assert (code, report["values"]["first"]["op"]) == (1, "addmm")
    assert "first node 2 of forward, addmm" in report["values"]["summary"]


def test_values_of_one_side_are_not_compared(tmp_path):
    a = saved(tmp_path, "a.cgt", MODEL)
    command = ("capture", "entry.py:build", "--device", "simulated", "-o", "b.cgt")
    done = run_cgtool(*command, cwd=tmp_path, timeout=300)
    code, report = diff(tmp_path, a, "b.cgt")
    assert (done.returncode, code, report["values"]) == (0, 0, None)
    assert "values are not compared: the capture B has none" in report["notes"]


class WithoutMemory(Stepper):
    """Two nodes, of which the values of one cannot be read."""

    count = 2

    def _launch(self, node):
        pass

    def clear(self):
        pass

    def written(self, node):
        if node == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [("out", torch.ones(3))]


def test_values_without_memory_for_them_are_left_out():
    stepper = WithoutMemory()
    assert values_at(stepper, 0) is None
    assert [each.name for each in values_at(stepper, 1)] == ["out"]


def test_a_nan_that_a_parameter_has_already_is_named(tmp_path):
    source = MODEL.replace(
        "    return model", "    model[2].bias.data[1] = float('nan')\n    return model"
    )
    _, report = run(tmp_path, source, "debug")
    (finding,) = report["findings"]
    assert "`aten::addmm`" in finding["reason"]
    assert "it reads `parameter 2.bias`, which has NaNs already" in finding["reason"]


TRAINING = """
import torch


def build(device):
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(4, 8).to(device), torch.nn.Linear(8, 4).to(device)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], capturable=True)
    mask = torch.full((4,), float("-inf"), device=device)

    def step(tokens):
        optimizer.zero_grad()
        hidden = embedding(tokens)
        weights = torch.softmax(head(hidden) + mask, -1)
        weights.sum().backward()
        optimizer.step()

    return step, (torch.arange(4, device=device),)
"""


def test_a_nan_that_the_warm_up_has_left_in_weights_is_found_where_it_comes_from(tmp_path):
    _, report = run(tmp_path, TRAINING, "debug")
    (finding,) = report["findings"]
    line = 1 + TRAINING.splitlines().index(
        "        weights = torch.softmax(head(hidden) + mask, -1)"
    )
    assert (finding["code"], finding["line"]) == ("first-nan", line)
    assert "from the state before the warm-up, which leaves NaNs" in report["looked_at"]


LATE = """
import torch


def build(device):
    calls = torch.zeros((), device=device)

    def step(x):
        calls.add_(1)
        return (x - calls).clamp(min=-5).log() + x

    return step, (torch.full((4,), 6.5, device=device),)
"""


def test_a_nan_of_a_later_replay_is_found_and_kept_in_the_file(tmp_path):
    options = "--replays", "5", "--values", "a.cgt", "--seed", "0"
    code, report = run(tmp_path, LATE, "debug", *options)
    (finding,) = report["findings"]
    assert (code, finding["severity"]) == (1, "error")
    assert "gives the first NaN in replay 4" in finding["reason"]
    shown = run_cgtool("show", "a.cgt", cwd=tmp_path).stdout
    assert "gives the first NaN in replay 4" in " ".join(shown.split())


def test_nans_that_nothing_keeps_are_a_warning(tmp_path):
    source = NAN.replace("(scores * logs).sum()", "(scores * logs).nansum()")
    code, report = run(tmp_path, source, "debug")
    (finding,) = report["findings"]
    assert (code, finding["severity"]) == (0, "warning")


STALE = """
import torch


class Cache:
    def __init__(self, device):
        self.scale = torch.ones(4, device=device)
        self.calls = torch.zeros((), device=device)


def build(device):
    cache = Cache(device)

    def step(x):
        cache.calls.add_(1)
        out = x * cache.scale
        cache.scale = torch.full_like(cache.scale, 2.0) * cache.calls
        return out + 1

    return step, (torch.ones(4, device=device),)
"""


def test_what_the_first_op_is_given_that_eager_has_another_of(tmp_path):
    _, report = run(tmp_path, STALE, "debug", "--against", "eager")
    (finding,) = (each for each in report["findings"] if each["code"] == "differs-from-eager")
    assert finding["line"] == 1 + STALE.splitlines().index("        out = x * cache.scale")
    given = [each for each in finding["evidence"] if each.startswith("it is given another")]
    assert given == [
        "it is given another `other`: 4 of 4 numbers differ by 2 at most; at [0] first: 6, eager 8"
    ], finding


OVERFLOW = """
import torch


def build(device):
    x = torch.full((4, 8), 300.0, dtype=torch.float16, device=device)

    def step():
        squares = x * x
        halves = squares.clone() * 0.5
        return halves - halves.mean()

    return step
"""


def test_where_the_infinities_come_from_that_make_a_nan(tmp_path):
    _, report = run(tmp_path, OVERFLOW, "debug")
    (finding,) = report["findings"]
    assert "`aten::sub.Tensor`, gives the first NaN" in finding["reason"]
    line = 1 + OVERFLOW.splitlines().index("        squares = x * x")
    origin = f"the infinities come from node 0, `aten::mul.Tensor`, entry.py:{line}"
    assert origin in finding["evidence"], finding
