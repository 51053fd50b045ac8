"""`cgtool check SCRIPT`: outputs that a script keeps over several replays without a copy."""

from __future__ import annotations

import json
import re

from tests.forked_workers import run_cgtool

CODE = "output-overwritten-by-next-replay"
CAPTURE = '''\
import collections
import functools
from dataclasses import dataclass

import torch


class Runner:
    """A graph, its input and its output."""

    def __init__(self):
        self.x = torch.zeros(4, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.x * 2


'''
KEPT = (
    CAPTURE
    + """\
@dataclass(slots=True)
class Record:
    step: int
    out: torch.Tensor


def a_list():
    runner, results = Runner(), []
    for value in range(2):
        runner.x.fill_(value)
        runner.graph.replay()  # <- `results`
        results.append(runner.y)
    print(torch.stack(results).tolist())


def a_dict_of_records():
    runner, history = Runner(), {}
    for value in range(3):
        runner.x.fill_(value)
        runner.graph.replay()  # <- `history`
        history[value] = Record(value, runner.y)
    print([each.out[0].item() for each in history.values()])


def a_deque_of_an_object():
    runner = Runner()
    runner.recent = collections.deque(maxlen=2)
    for value in range(3):
        runner.x.fill_(value)
        runner.graph.replay()  # <- `runner.recent`
        runner.recent.append(runner.y)
    print(sum(runner.recent).tolist())


def a_comprehension():
    runner = Runner()

    def run(value):
        runner.x.fill_(value)
        runner.graph.replay()  # <- `results`
        return runner.y

    results = [run(value) for value in range(3)]
    print(results[0].sum().item())


def a_list_without_a_name():
    runner = Runner()

    def run(value):
        runner.x.fill_(value)
        runner.graph.replay()  # <- a list
        return runner.y

    print(torch.stack([run(value) for value in range(3)]).tolist())


def views():
    runner = Runner()

    def run(value):
        runner.x.fill_(value)
        runner.graph.replay()  # <- `first`
        return runner.y[:2]

    first = run(1.0)
    second = run(2.0)
    print((first + second).tolist())


def batches_beside_rows_of_their_own_number():
    runner = Runner()

    def run(batch):
        runner.x[: len(batch)].copy_(batch)
        runner.graph.replay()  # <- `results[0][1]`
        return runner.y[: len(batch)]

    results = []
    for rows in (3, 4):
        batch = torch.ones(rows, device="cuda")
        results.append((batch, run(batch)))
    for batch, result in results:
        print((batch * 2 - result).abs().max().item())


def callables():
    x = torch.ones(4, device="cuda")
    graphed = torch.cuda.make_graphed_callables(lambda x: x * 3, (x,))
    one = graphed(x)
    two = graphed(x + 1)  # <- `one`
    print(torch.cat([one, two]).tolist())


def a_difference():
    runner, before = Runner(), None
    for value in range(3):
        runner.x.fill_(value)
        runner.graph.replay()  # <- `before`
        now = runner.y
        if before is not None:
            print((now - before).abs().sum().item())
        before = now


def an_output_of_the_script():
    x, out, results = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(x, 2, out=out)
    for value in range(3):
        x.fill_(value)
        graph.replay()  # <- `results`
        results.append(out)
    print(torch.stack(results).tolist())


for each in (a_list, a_dict_of_records, a_deque_of_an_object, a_comprehension,
             a_list_without_a_name, views, batches_beside_rows_of_their_own_number,
             callables, a_difference, an_output_of_the_script):
    each()
"""
)
FINE = (
    CAPTURE
    + """\
def read_after_each_replay():
    runner, total = Runner(), 0.0
    out = view = None
    for value in range(4):
        runner.x.fill_(value)
        runner.graph.replay()
        out, view = runner.y, runner.y[:2]
        total += out.sum().item() + view.sum().item()
    print(total)


def one_name_after_another():
    runner = Runner()

    def run(value):
        runner.x.fill_(value)
        runner.graph.replay()
        return runner.y.view(2, 2)

    warm = run(1.0)
    print(warm.sum().item())
    now = run(2.0)
    print(now.square().sum().item(), (now * now).tolist(), (now != now).any().item())


def copies():
    runner, results = Runner(), []
    for value in range(4):
        runner.x.fill_(value)
        runner.graph.replay()
        results.append(runner.y.clone())
    print(torch.stack(results).tolist())


def one_output_twice():
    runner = Runner()
    pair = [runner.y, runner.y]
    for value in range(4):
        runner.x.fill_(value)
        runner.graph.replay()
        latents = runner.y
        print(torch.cat([latents] * 2).sum().item(), torch.stack(pair).sum().item())


def emptied_before_the_next():
    runner, waiting = Runner(), []
    for value in range(4):
        runner.x.fill_(value)
        runner.graph.replay()
        waiting.append(runner.y)
        waiting.append(runner.y[:2])
        print([each.sum().item() for each in waiting])
        waiting.clear()


def a_view_made_once():
    runner = Runner()
    runner.graph.replay()
    head = runner.y[:2]
    for value in range(4):
        runner.x.fill_(value)
        runner.graph.replay()
        print(head.sum().item(), runner.y[2:].sum().item())


def views_of_each_size_made_once():
    runner, views = Runner(), {}

    def run(rows):
        runner.x.fill_(rows)
        runner.graph.replay()
        if rows not in views:
            views[rows] = runner.y[:rows]
        return views[rows]

    for rows in (3, 4, 3, 2, 4, 3):
        print(run(rows).sum().item())


def weights_of_themselves():
    runner = Runner()
    for value in range(4):
        runner.x.fill_(value)
        runner.graph.replay()
        out = runner.y
        print((out - out.detach()).sum().item())


def graphs_by_size():
    runners = {size: Runner() for size in range(3)}
    outputs = []
    for size, runner in runners.items():
        runner.x.fill_(size)
        runner.graph.replay()
        outputs.append(runner.y)
    print(torch.stack(outputs).tolist())


def callables():
    x = torch.ones(4, device="cuda")
    graphed = torch.cuda.make_graphed_callables(lambda x: x * 3, (x,))
    for value in range(4):
        y = graphed(x + value)
        print(y.sum().item())


for each in (read_after_each_replay, one_name_after_another, copies, one_output_twice,
             emptied_before_the_next, a_view_made_once, views_of_each_size_made_once,
             weights_of_themselves, graphs_by_size,
             callables):
    each()
"""
)


def findings_of(source, tmp_path):
    (tmp_path / "script.py").write_text(source)
    done = run_cgtool(
        "check", "--device", "simulated", "--format", "json", "script.py", cwd=tmp_path, timeout=300
    )
    assert "/cgtool/" not in done.stderr, done.stderr
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, [each for each in findings if each["severity"] != "note"]


def test_what_keeps_results_of_several_replays_is_named(tmp_path):
    code, findings = findings_of(KEPT, tmp_path)
    assert code == 1
    expected = {
        number: match[1]
        for number, line in enumerate(KEPT.splitlines(), 1)
        if (match := re.search("# <- (.+)", line))
    }
    found = {each["line"]: each for each in findings}
    assert {each["code"] for each in findings} == {CODE}
    assert found.keys() == expected.keys()
    for line, name in expected.items():
        assert name in found[line]["reason"], found[line]
        assert any(text.startswith("used at script.py:") for text in found[line]["evidence"])
    assert "clone()" in findings[0]["fix"]


def test_outputs_that_are_used_before_the_next_replay_are_fine(tmp_path):
    assert findings_of(FINE, tmp_path) == (0, [])


def test_graphs_have_the_numbers_of_a_run(tmp_path):
    script = tmp_path / "engines.py"
    second = "second.x.fill_({0})\nsecond.graph.replay()\nkept.append(second.y)\n"
    body = "Runner().graph.replay()\nsecond, kept = Runner(), []\n"
    body += second.format(1) + second.format(2) + "print(kept)\n"
    script.write_text(CAPTURE + body)
    checked = run_cgtool("check", "engines.py", "--device", "simulated", cwd=tmp_path)
    assert "output of graph 1" in " ".join(checked.stdout.split()) + checked.stderr
    ran = run_cgtool(
        "run", "--graphs", "--device", "simulated", "--format", "csv", "engines.py", cwd=tmp_path
    )
    rows = [line.split(",")[0] for line in ran.stdout.splitlines() if "engines.py:" in line]
    assert rows == ["0", "1"]
