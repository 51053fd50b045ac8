"""``cgtool run``: the calls of captured code outside graphs. Each program counts them itself."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked_workers import run_cgtool

pytestmark = pytest.mark.skipif(
    not hasattr(sys, "monitoring"), reason="Python 3.11 has no sys.monitoring"
)

BEFORE = """
import json, sys
import torch, cgtool
from torch import nn

torch.set_grad_enabled(False)

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    def forward(self, x, **more):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

def rows(count):
    return torch.ones(count, 4, device="cuda")

def captured(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph
"""


def report_of(
    folder: Path, program: str, *options: str, run: Callable[..., Any] = run_cgtool
) -> dict[str, Any]:
    path = folder / "program.py"
    path.write_text(BEFORE + textwrap.dedent(program))
    options = options or ("--device", "simulated")
    done = run("run", "--quiet", *options, "-o", "run.cgt", str(path), cwd=folder)
    assert done.returncode == 0, done.stderr
    shown = run_cgtool("run", "run.cgt", "--rows", "0", "--format", "json", cwd=folder)
    report: dict[str, Any] = json.loads(shown.stdout)
    return report


def runs_of(report: dict[str, Any], *fields: str) -> dict[Any, int]:
    counts: Counter[Any] = Counter()
    for row in report["eager"]:
        key = tuple(" to ".join(row[field]) if field == "sizes" else row[field] for field in fields)
        counts[key[0] if len(key) == 1 else key] += row["runs"]
    return dict(counts)


ENGINE = """
import random
random.seed(1)

class Engine:
    def __init__(self, sizes):
        self.model = Decoder().cuda()
        self.static = rows(max(sizes))
        self.graphs = {size: self.capture(size) for size in sizes}

    def run(self, size):
        return self.model(self.static[:size])

    def capture(self, size):
        for _ in range(2):
            self.run(size)
        return captured(lambda: self.run(size))

    def step(self, x, lora, grammar):
        fitting = [size for size in self.graphs if size >= len(x)]
        cgtool.note(batch=len(x))
        if not fitting or lora or grammar:
            if lora:
                cgtool.note(reason="lora")
            if grammar:
                cgtool.note(mode=grammar)
            return self.model(x)
        self.static[:len(x)] = x
        self.graphs[fitting[0]].replay()

engine = Engine([1, 2, 4, 8])
counts = {"large": 0, "lora": 0, "grammar": 0, "graphs": 0}
for step in range(300):
    batch = random.choice([1, 3, 8, 9, 20] if step % 7 == 0 else [1, 3, 8])
    lora = random.random() < 0.03
    grammar = not lora and random.random() < 0.02
    engine.step(rows(batch), lora, "json" if grammar else None)
    counts["lora" if lora else "grammar" if grammar else "large" if batch > 8 else "graphs"] += 1
json.dump(counts, open("counts.json", "w"))
"""


def test_an_engine_with_misses_by_size_and_by_two_flags(tmp_path: Path) -> None:
    assert_counted(report_of(tmp_path, ENGINE), tmp_path)
    shown = run_cgtool("run", "run.cgt", cwd=tmp_path, env={"COLUMNS": "160"}).stdout
    assert "Decoder.forward" in shown and "batch 9 to 20" in shown


def assert_counted(report: dict[str, Any], tmp_path: Path) -> None:
    """Whether the steps of the engine are those that it counted."""
    counts = json.loads((tmp_path / "counts.json").read_text())
    graphs = counts.pop("graphs")
    assert min(counts.values()) > 2
    reasons = {
        "large": "with batch > 8, the largest that is captured",
        "lora": "with reason lora",
        "grammar": "with mode json",
    }
    ordered = sorted(counts, key=lambda each: -counts[each])
    assert report["steps"] == (
        f"{graphs} of 300 steps ran in graphs; {300 - graphs} ran eagerly: "
        + ", ".join(f"{counts[each]} {reasons[each]}" for each in ordered)
    )
    assert runs_of(report, "code") == {"Decoder.forward": 300 - graphs}
    line = 1 + (BEFORE + ENGINE).splitlines().index("            return self.model(x)")
    assert runs_of(report, "line") == {f"program.py:{line}": 300 - graphs}
    large = report["eager"][0]
    assert (large["why"], large["served_by"]) == ("batch > 8", None)
    assert (large["sizes"], large["notes"]) == (["x[9,4]", "x[20,4]"], ["batch 9 to 20"])
    assert {row["served_by"] for row in report["eager"]} == {None, "x[1,4]", "x[4,4]", "x[8,4]"}
    # Notes of steps that ran eagerly are not those of a replay.
    assert sum(note["replays"] for row in report["lines"] for note in row["notes"]) == graphs


def test_runs_before_the_first_capture_and_warm_ups_are_no_steps(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        model = Decoder().cuda()
        for size in (8, 4, 2):
            for _ in range(3):
                model(rows(size))
        graph = captured(lambda: model(rows(8)))
        for size in (8, 4, 2):
            for _ in range(3):
                model(rows(size))
            graph = captured(lambda: model(rows(size)))
        graph.replay()
        model(rows(4))  # between two replays
        graph.replay()
        model(rows(6))
        model(rows(3))
        captured(lambda: model(rows(3)))
        """,
    )
    # Three of 8 rows warmed up the second capture of 8, and one of 3 the last.
    assert report["steps"] == (
        "2 of 4 steps ran in graphs; 2 ran eagerly: 2 that a captured size would have served"
    )


def test_other_objects_of_the_same_class_are_not_captured(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        class Runner:
            def __init__(self, model):
                self.model = model
            def run(self, x):
                return self.model(x)

        def wrapped(function):
            def call(*args):
                return function(*args)
            return call

        class Wrapped(Runner):
            run = wrapped(Runner.run)

        def of(model):
            return lambda x: model(x)

        def calls(model, x):
            return model(x)

        for make in (Runner, Wrapped):
            target, draft = make(Decoder().cuda()), make(Decoder().cuda())
            graph = captured(lambda: target.run(rows(4)))
            for _ in range(10):
                graph.replay()
                draft.run(rows(4))
            target.run(rows(4))
        linear, other = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
        first, second = of(Decoder().cuda()), of(Decoder().cuda())
        graphs = [captured(lambda: linear(rows(4))), captured(lambda: first(rows(4)))]
        for _ in range(10):
            other(rows(4))
            second(rows(4))
            calls(other, rows(4))
        """,
    )
    assert runs_of(report, "code") == {"Runner.run": 1, "Wrapped.run": 1}


def test_a_step_is_the_outermost_call_and_ends_with_an_error(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        model = Decoder().cuda()

        def decode(x, fail=False):
            y = model(x)
            if fail:
                raise ValueError
            return model(y)

        graph = captured(lambda: decode(rows(2)))
        graph.replay()
        decode(rows(2))
        for _ in range(3):
            try:
                decode(rows(2), fail=True)
            except ValueError:
                pass
        decode(rows(1))
        """,
    )
    assert runs_of(report, "code") == {"decode": 2}


def test_code_around_pieces_that_are_replayed_does_not_run_eagerly(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        class Piece(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.graph, self.is_on = nn.Linear(4, 4), None, True
            def forward(self, x):
                if not self.is_on:
                    return self.layer(x)
                if self.graph is None:
                    self.graph = captured(lambda: self.layer(rows(4)))
                self.graph.replay()
                return x

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.pieces = nn.ModuleList(Piece() for _ in range(3))
            def forward(self, x):
                for piece in self.pieces:
                    x = piece(x)
                return x

        def switch(is_on):
            for piece in model.pieces:
                piece.is_on = is_on

        model = Model().cuda()
        model(rows(4))  # captures the pieces
        switch(False)
        whole = captured(lambda: model(rows(2)))
        switch(True)
        for _ in range(5):
            whole.replay()
            model(rows(4))
        switch(False)
        model(rows(4))
        model(rows(4))
        """,
    )
    assert report["steps"] == (
        "10 of 12 steps ran in graphs; 2 ran eagerly: 2 with x.shape[0] > 2, the largest that is "
        "captured"
    )
    # Both inside a piece and around all of them: the outermost call counts.
    assert runs_of(report, "code", "why") == {("Model.forward", "x.shape[0] > 2"): 2}


def test_code_that_is_captured_for_training_and_evaluated_is_no_step(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        torch.set_grad_enabled(True)
        model = Decoder().cuda()
        model = torch.cuda.make_graphed_callables(model, (rows(4),))
        for _ in range(3):
            model(rows(4)).sum().backward()
        model.eval()
        model(rows(4))
        """,
    )
    assert (report["eager"], report["steps"]) == ([], None)


def test_a_prompt_is_longer_than_what_is_captured(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        import functools

        def wrapped(function):
            @functools.wraps(function)
            def call(self, *args, **kwargs):
                return function(self, *args, **kwargs)
            return call

        class Wrapped(Decoder):
            @wrapped
            def forward(self, x, positions=None, cache=None):
                return super().forward(x)

        model = Wrapped().cuda()

        class Engine:
            def decode(self, x, positions, cache):
                return model(x, positions=positions, cache=cache)

        x = torch.ones(2, 1, 4, device="cuda")
        graph = captured(lambda: Engine().decode(x, rows(2), rows(2)))
        graph.replay()
        model(torch.ones(2, 9, 4, device="cuda"), cache=rows(2))
        """,
    )
    assert report["steps"] == (
        "1 of 2 steps ran in graphs; 1 ran eagerly: 1 with args[0].shape[1] > 1, the largest "
        "that is captured"
    )
    assert runs_of(report, "code", "sizes") == {("Wrapped.forward", "args[0][2,9,4]"): 1}


def test_a_part_of_a_capture_is_no_step(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        torch.set_grad_enabled(True)
        model = Decoder().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train():
            model(rows(4)).sum().backward()
            optimizer.step()

        train()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(rows(4)).sum().backward()
            optimizer.step()
        graph.replay()
        for _ in range(5):
            model(rows(4))  # evaluation: most of the graph is something else
            model.layers[0](rows(4))

        def norm(x):
            return x + x.mean()

        def normed(x):
            for _ in range(30):
                x = norm(x)

        def several():
            for _ in range(4):
                model(rows(4))

        graphs = [captured(lambda: normed(rows(4))), captured(several)]
        for graph in graphs:
            graph.replay()
        for _ in range(5):
            norm(rows(4))  # in a loop of the capture
            model(rows(4))  # four times in the capture
        """,
    )
    assert (report["eager"], report["steps"]) == ([], None)


def test_numbers_flags_and_sizes_without_end(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        model, static = Decoder().cuda(), rows(8)

        def decode(batch):
            return model(static[:batch])

        def capture(batch):
            return captured(lambda: decode(batch))

        graphs = [capture(batch) for batch in (1, 2, 4)]
        for batch in (3, 3, 8):
            decode(batch)
        for step in range(1500):
            cgtool.note(step=step, lora=True, tensor=static, text="x" * 1000)
            decode(4)
            graphs[0].replay()
        """,
    )
    assert report["steps"].startswith("1,500 of 3,003 steps ran in graphs; 1,503 ran eagerly: ")
    counts = runs_of(report, "why", "served_by")
    assert counts["batch > 4", None] == 1
    assert counts["", "batch 4"] == 2
    assert sum(counts.values()) == 1503
    assert any("`tensor` is neither a number nor a text" in reason for reason in report["lost"])


def test_forks_threads_and_the_end_of_a_recording(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        import os, threading
        model = Decoder().cuda()
        graph = captured(lambda: model(rows(4)))

        def steps(count):
            for _ in range(count):
                model(rows(5))
        threads = [threading.Thread(target=steps, args=(50,)) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        if not (child := os.fork()):
            steps(7)  # of no graph of its own
            captured(lambda: model(rows(2)))
            steps(3)
            os._exit(0)
        os.waitpid(child, 0)
        graph.replay()
        """,
    )
    assert runs_of(report, "why") == {"x.shape[0] > 4": 200, "x.shape[0] > 2": 3}


def test_objects_that_cannot_be_looked_at(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        class Odd:
            __slots__ = ("model",)  # without weak references
            def __getattribute__(self, name):
                if name not in ("model", "run"):
                    raise ValueError(name)
                return super().__getattribute__(name)
            def run(self, x, *args, **kwargs):
                args, kwargs = 1, 2
                return self.model(x)

        class Sized:
            shape = property(lambda self: 1 / 0)
            def __len__(self):
                raise ValueError
            __hash__ = None

        odd, sized = Odd(), Sized()
        odd.model = Decoder().cuda()
        graph = captured(lambda: odd.run(rows(2), sized, [sized, rows(3)], key=sized))
        graph.replay()
        for _ in range(3):
            odd.run(rows(2), sized, [sized, rows(3)], key=sized)
        """,
    )
    assert runs_of(report, "code", "sizes") == {("Odd.run", "x[2,4]"): 3}
    assert report["lost"] == []


def test_more_sizes_than_can_be_kept(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        def fill(x, y):
            return x + 1
        two = rows(2)
        graph = captured(lambda: fill(two, 0))
        graph.replay()
        for size in range(2100):
            fill(torch.ones(size, 0, device="cuda"), 0)
        """,
    )
    assert report["steps"].endswith(
        "2,100 ran eagerly: 1,997 with x.shape[0] > 2, the largest that is captured, 3 that a "
        "captured size would have served"
    )


def test_code_without_arguments(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        model, static = Decoder().cuda(), rows(2)
        def decode():
            return model(static)
        graph = captured(lambda: decode())
        graph.replay()
        decode()
        """,
    )
    assert report["steps"] == (
        "1 of 2 steps ran in graphs; 1 ran eagerly: 1 whose arguments say no size "
        "(`cgtool.note` does)"
    )


def test_the_warm_up_of_a_capture_of_more_code(tmp_path: Path) -> None:
    report = report_of(
        tmp_path,
        """
        model, static = Decoder().cuda(), rows(2)
        graph = captured(lambda: model(static))
        def train():
            out = model(static)
            for _ in range(50):
                out = out * 2
        for _ in range(3):
            train()
        captured(train).replay()
        """,
    )
    assert report["eager"] == []
