"""What a follower says of graphs, in which order, and whose they are."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cgtool.model.ledger import COMPILE, RESET
from cgtool.observe import graphs
from cgtool.observe.graphs import Beginning, GraphFollower, Subscriber
from cgtool.torch_compat import inductor
from cgtool.torch_compat.patches import Patches


class Graph:
    refuses = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if capture_error_mode == "refused":
            raise RuntimeError(capture_error_mode)

    def capture_end(self) -> None:
        if self.refuses:
            raise RuntimeError("refused")

    def replay(self) -> None: ...

    def reset(self) -> None: ...


class Log(Subscriber[str]):
    """Names graphs in order, and notes what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.beginnings: list[Beginning] = []
        self.expected: list[Any] = []
        """What each capture that began was expected as."""

    def capture_expected(self, beginning: Beginning) -> str:
        return f"{beginning.owner} in {beginning.mode}"

    def capture_began(self, beginning: Beginning, before: Any, expected: Any) -> str | None:
        # A graph that is kept would never be freed.
        self.beginnings.append(beginning._replace(graph=None))
        self.expected.append(expected)
        return None if beginning.owner == COMPILE else f"graph {len(self.beginnings)}"

    def capture_refused(self, beginning: Beginning, before: Any, error: BaseException) -> None:
        self.lines.append(f"{beginning.owner} refused {error}")

    def capture_ends(self, graph: str, raised: BaseException | None) -> None:
        self.lines.append(f"{graph} ends {type(raised).__name__}")

    def captured(self, graph: str, cuda_graph: Any) -> None:
        self.lines.append(f"{graph} captured")

    def capture_failed(
        self, graph: str, raised: BaseException | None, refused: BaseException | None
    ) -> None:
        self.lines.append(f"{graph} failed {type(raised).__name__} {refused}")

    def replay(
        self, original: Callable[[Any], None], graphs: dict[int, str]
    ) -> Callable[[Any], None]:
        def replay(graph: Any) -> None:
            original(graph)
            self.lines.append(f"{graphs.get(id(graph))} replayed")

        return replay

    def gone(self, graph: str, end: str) -> None:
        self.lines.append(f"{graph} {end}")

    def skipped(self, reason: str) -> None: ...


@pytest.fixture
def log() -> Iterator[Log]:
    with Patches() as patches:
        subscriber = Log()
        GraphFollower(Graph, subscriber, patches)
        yield subscriber


@contextmanager
def captured(graph: Graph, *args: Any, **kwargs: Any) -> Iterator[None]:
    graph.capture_begin(*args, **kwargs)
    try:
        yield
    finally:
        graph.capture_end()


def test_the_life_of_a_graph(log: Log) -> None:
    graph = Graph()
    with captured(graph, (0, 1), capture_error_mode="relaxed"):
        pass
    graph.replay()
    graph.reset()
    graph.replay()
    with captured(graph):
        pass
    del graph
    assert log.lines == [
        "graph 1 ends NoneType", "graph 1 captured", "graph 1 replayed", "graph 1 reset",
        "None replayed", "graph 2 ends NoneType", "graph 2 captured", "graph 2 freed",
    ]  # fmt: skip
    first, second = log.beginnings
    assert (first.pool, first.mode, second.pool, second.mode) == ((0, 1), "relaxed", None, "global")
    assert first.owner == first.chain[0][0].co_qualname == "captured"
    assert (first.because, second.because) == (None, RESET)


def test_what_is_expected_is_looked_up_before_the_capture() -> None:
    graph, other = Graph(), Graph()
    log = Log()
    with Patches() as patches:
        follower = GraphFollower(Graph, log, patches)

        def expect(*args: Any) -> None:
            follower.expect(sys._getframe(1), graph, *args)

        expect(None, "relaxed")
        with captured(graph, capture_error_mode="relaxed"):
            pass
        with captured(graph, capture_error_mode="relaxed"):  # was expected once
            pass
        expect(None, "relaxed")
        with captured(other, capture_error_mode="relaxed"):
            pass
        expect(None, "relaxed")
        with captured(graph, (0, 1), capture_error_mode="relaxed"):
            pass
        expect()
        follower.expect_none()
        with captured(graph):
            pass
        expect()
        thread = threading.Thread(target=lambda: captured(graph).__enter__())
        thread.start()
        thread.join()
    name = "test_what_is_expected_is_looked_up_before_the_capture"
    assert log.expected == [f"{name} in relaxed", None, None, None, None, None]
    assert [each.owner for each in log.beginnings[:2]] == [name, "captured"]


def test_captures_that_fail(log: Log) -> None:
    graph = Graph()
    with pytest.raises(KeyError), captured(graph):
        raise KeyError
    graph.refuses = True
    with pytest.raises(RuntimeError), captured(graph):
        pass
    with pytest.raises(RuntimeError):
        graph.capture_end()
    with pytest.raises(RuntimeError), captured(graph, capture_error_mode="refused"):
        pass
    other = Graph()
    other.capture_begin()
    del other
    graph.replay()
    assert log.lines == [
        "graph 1 ends KeyError", "graph 1 failed KeyError None",
        "graph 2 ends NoneType", "graph 2 failed NoneType refused",
        "captured refused refused", "graph 3 failed NoneType None", "None replayed",
    ]  # fmt: skip


def test_a_reset_of_what_was_never_captured_is_no_reason(log: Log) -> None:
    graph = Graph()
    graph.reset()
    with pytest.raises(KeyError), captured(graph):
        raise KeyError
    graph.reset()
    with captured(graph):
        pass
    assert [each.because for each in log.beginnings] == [None, None]


def test_an_exception_that_was_handled_before_is_none_of_the_capture(log: Log) -> None:
    try:
        raise KeyError
    except KeyError:
        with captured(Graph()):
            pass
    assert log.lines[:2] == ["graph 1 ends NoneType", "graph 1 captured"]


def test_a_subscriber_may_leave_out_a_graph(log: Log) -> None:
    """Here one that compiled code captures."""
    file = Path(torch.__file__).with_name("_inductor") / "cudagraph_trees.py"
    names: dict[str, Any] = {"captured": captured}
    exec(
        compile("def run(graph):\n    with captured(graph):\n        pass\n", str(file), "exec"),
        names,
    )
    graph = Graph()
    names["run"](graph)
    graph.replay()
    assert log.lines == ["None replayed"]
    assert log.beginnings[0].owner == COMPILE


def test_nothing_is_followed_once_the_patches_are_undone() -> None:
    with Patches() as patches:
        GraphFollower(Graph, subscriber := Log(), patches)
    with captured(Graph()):
        pass
    assert subscriber.beginnings == []


def test_graph_trees_say_what_they_capture_why_again_and_after_which_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0

    class Manager:
        compile_id, id_to_mode = "0/1", dict.fromkeys((1, 2), types.SimpleNamespace(name="FORWARD"))

        def run_eager(self, _inputs: list[Any], _function: int) -> None:
            nonlocal now
            now += 20

        def record_function(self, _inputs: list[Any], _function: int) -> None:
            with captured(Graph()):
                pass

    class Node:
        def check_invariants(self, _inputs: list[Any]) -> tuple[Any, Callable[[], str]]:
            return types.SimpleNamespace(name="OTHER"), lambda: "another address\n"

    trees = types.ModuleType(inductor.RECORD.module)
    vars(trees).update(CUDAGraphTreeManager=Manager, CUDAGraphNode=Node)
    monkeypatch.setitem(sys.modules, trees.__name__, trees)
    monkeypatch.setattr(graphs, "_now", lambda: now)
    with Patches() as patches:
        GraphFollower(Graph, log := Log(), patches)
        manager = Manager()
        for function in (1, 2, 2):
            manager.run_eager([], function)
        manager.record_function([], 2)
        manager.record_function([], 1)
        Node().check_invariants([])
        manager.record_function([], 1)
        with captured(Graph()):
            pass
    key = "0/1 forward"
    assert [(each.key, each.because, each.warm_up_ns) for each in log.beginnings] == [
        (key, None, 40), (key, None, 20), (key, "another address", None), ("", None, None)
    ]  # fmt: skip
