"""Code that is followed, where Dynamo compiles it: the simulated device compiles nothing."""

from __future__ import annotations

import sys
import threading
from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from cgtool.model.journal import JournalWriter
from cgtool.model.records import StepRan
from cgtool.observe import captured_calls
from cgtool.recorder.eager_steps import EagerSteps
from cgtool.recorder.note_counters import NoteCounters
from cgtool.recorder.replays import GraphReplays
from cgtool.torch_compat.patches import Patches

pytestmark = pytest.mark.skipif(
    not hasattr(sys, "monitoring"), reason="Python 3.11 has no sys.monitoring"
)


class Recorded:
    """Captures, whose ops are those that call ``op``."""

    def __init__(self, folder: Path, patches: Patches) -> None:
        self.journal = JournalWriter(folder, "1-1")
        notes = NoteCounters(self.journal)
        self.steps = EagerSteps(self.journal, lambda thread: self.is_capturing, notes, patches)
        self.is_capturing, self.graphs, self.ops = False, 0, 0

    def op(self, thread: int | None = None) -> None:
        """``thread``: the one that waits for this one."""
        if self.is_capturing:
            captured_calls.look(thread or get_ident(), self.ops, sys._getframe(1))
            self.ops += 1

    def capture(self, call: Callable[[], object]) -> None:
        graph = GraphReplays(self.graphs)
        graph.count_in(self.journal)
        code = sys._getframe().f_code
        self.is_capturing, self.ops, calls = True, 0, self.steps.look_at()
        assert calls is not None
        call()
        calls.stop()
        self.is_capturing = False
        self.graphs += 1
        most = calls.around_most()[1:]  # without the lambda
        self.steps.captured(graph, [code], most, calls.seen())

    def runs(self) -> dict[tuple[str, tuple[int, ...]], int]:
        counts, counters = Counter[Any](), self.journal.journal.counters().notes
        for record in self.journal.journal.records():
            if isinstance(record, StepRan):
                sizes = record.call.sizes or ()
                key = record.call.name, sizes[0].shape if sizes else ()
                counts[key] += counters[record.number][0]
        return dict(counts)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with Patches() as patches:
        yield Recorded(tmp_path, patches)
    torch._dynamo.reset()


class Decoder(torch.nn.Module):
    recorded: Recorded | None = None

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recorded is not None:
            self.recorded.op()
        for layer in self.layers:
            x = torch.relu(layer(x))
        torch._dynamo.graph_break()
        return x + 1


def compiled_by_dynamo() -> list[Any]:
    counters = torch._dynamo.utils.counters
    return [dict(counters[name]) for name in ("stats", "frames", "graph_break")]


def test_dynamo_compiles_what_it_compiles_without(recorded: Recorded) -> None:
    found = []
    for is_followed in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = Decoder()
        if is_followed:
            model.recorded = recorded
            recorded.capture(lambda model=model: model(torch.ones(2, 4)))
            model.recorded = None
            model(torch.ones(2, 4))
        compiled = torch.compile(model, backend="eager")
        for size in (2, 3, 4, 5, 2):
            compiled(torch.ones(size, 4))
        found.append(compiled_by_dynamo())
    assert found[0] == found[1]
    assert found[0][0]["unique_graphs"] > 2
    assert recorded.runs() == {("Decoder.forward", (2, 4)): 1}


def test_compiled_code_is_followed_for_sizes_that_are_compiled_later(recorded: Recorded) -> None:
    def backend(module: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            recorded.op()
            return module(*args)

        return run

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    model, other = (torch.compile(Decoder(), backend=backend) for _ in range(2))
    expected = {}
    for call, name in ((model, "Decoder.forward"), (torch.compile(function, backend=backend), "")):
        call(torch.ones(2, 4))
        recorded.capture(lambda call=call: call(torch.ones(2, 4)))
        for size in (2, 3, 4, 5, 5):
            call(torch.ones(size, 4))
            other(torch.ones(size, 4))
        name = name or function.__qualname__
        expected |= {(name, (2, 4)): 1, (name, (3, 4)): 1, (name, (4, 4)): 1, (name, (5, 4)): 2}
    assert recorded.runs() == expected


def test_ops_of_other_threads_belong_to_the_call_that_waits(recorded: Recorded) -> None:
    home = get_ident()

    def forward() -> None:
        for _ in range(3):
            recorded.op()

    def train() -> None:
        forward()
        thread = threading.Thread(target=lambda: [recorded.op(home) for _ in range(40)])
        thread.start()
        thread.join()

    recorded.capture(lambda: train())
    train()
    forward()
    assert {name.rpartition(".")[2]: runs for (name, _), runs in recorded.runs().items()} == {
        "train": 1
    }


def test_a_tool_of_the_program_goes_first(recorded: Recorded, patches: Patches) -> None:
    monitoring: Any = sys.monitoring
    for tool in (3, 4):
        monitoring.use_tool_id(tool, "theirs")
    try:
        assert recorded.steps.look_at() is None
    finally:
        for tool in (3, 4):
            monitoring.free_tool_id(tool)
