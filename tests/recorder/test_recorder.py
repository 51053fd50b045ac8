"""The recorder, on graphs that stand in for CUDA's."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

import cgtool
from cgtool.analysis.ledger import merge
from cgtool.model.capture import Caveat, Contents, Environment, Frame
from cgtool.model.journal import Command, JournalWriter, read_journals
from cgtool.model.ledger import COMPILE, RESET, UNSEEN, Ledger, LedgerGraph
from cgtool.model.records import Began, NeedsRecorder
from cgtool.recorder.addresses import Addresses
from cgtool.recorder.notes import note
from cgtool.recorder.recorder import Recorder
from cgtool.recorder.replays import GraphReplays
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.storages import StorageRef
from tests.detectors.autograd_threads import backwards_on_threads


def driver_raises(text: str) -> None:
    """Not by a line that says ``raise``, whose text would be the user's."""
    (_ for _ in ()).throw(RuntimeError(text))


class GraphInC:
    """Stands for ``torch._C._CUDAGraph``."""

    def replay(self) -> None: ...


class Graph(GraphInC):
    """Stands for ``torch.cuda.CUDAGraph``."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if pool is not None:
            driver_raises("CUDA graphs must be captured on a non-default stream.")

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        super().replay()

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return 0, 1


# As if of PyTorch: without a line of the program's.
Graph.replay.__code__ = Graph.replay.__code__.replace(co_filename=torch.__file__)


class Watch:
    def begin(self, _graph: Any) -> None: ...

    def read(self) -> Callable[[Any], Contents]:
        return lambda _: ((), ())

    def storages(self) -> tuple[()]:
        return ()

    def stop(self) -> None: ...


class Device:
    graph_class = Graph
    simulated = False
    in_python = False

    def notes_ops_in_python(self) -> bool:
        return self.in_python

    def environment(self) -> Callable[[], Environment]:
        return lambda: Environment(device="none")

    def when_used(self, call: Callable[[], None]) -> None:
        pass

    def prepare(self) -> None:
        assert not gc.isenabled(), "no collection runs while the first capture waits for imports"

    def watch(self, table: Any, chain: Any, *, compiled: bool) -> Watch:
        return Watch()

    def functions(self) -> tuple[()]:
        return ()

    def free_bytes(self) -> int | None:
        return None

    def stream(self) -> int | None:
        return None

    def allocated_at(self, addresses: Any) -> dict[int, tuple[Any, ...]]:
        return {}

    def follow(self, ref: Any, gone: Any) -> None: ...

    def pool_segments(self, pool: Any) -> tuple[()]:
        return ()

    def time_replays(self, *_args: Any) -> None:
        pass

    def reserved_bytes(self) -> int | None:
        return None

    def new_allocations(self, *, lines: bool = False) -> tuple[()]:
        return ()


class Recorded:
    """A recording, ended by ``ledger``."""

    def __init__(self, folder: Path, at_end: Patches) -> None:
        self._folder = folder
        self._patches = at_end
        self.journal = JournalWriter(folder, "1-1")
        self.journal.append(Began(0, 1, 0, (), False))
        self.recorder = Recorder(Device(), self.journal, self._patches)
        self.frames: tuple[Frame, ...] = ()
        """Of the ledger."""
        self.caveats: tuple[Caveat, ...] = ()

    def ledger(self, *, killed: bool = False) -> Ledger:
        self._patches.close()
        if not killed:
            self.recorder.stop()
        capture = merge(Command((), 0), read_journals(self._folder))
        self.frames, self.caveats = capture.frames, capture.caveats
        assert capture.ledger is not None
        return capture.ledger


@pytest.fixture
def recorded(tmp_path: Path, patches: Patches) -> Recorded:
    return Recorded(tmp_path, patches)


def captured() -> Graph:
    graph = Graph()
    graph.capture_begin()
    graph.capture_end()
    return graph


def values(graph: LedgerGraph) -> list[tuple[tuple[float, ...], int]]:
    return [(noted.values, noted.replays) for noted in graph.notes]


def test_nothing_is_asked_of_the_device_while_a_capture_begins(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: another thread's calls may end a capture in mode ``global``."""
    log = list[str]()

    def watch(*_args: Any, compiled: bool) -> Watch:
        time.sleep(0.1)
        log.append("begun")
        return Watch()

    def environment(_device: Device) -> Callable[[], Environment]:
        return lambda: log.append("asked") or Environment(device="none")

    monkeypatch.setattr(Device, "watch", watch)
    monkeypatch.setattr(Device, "environment", environment)
    captured()
    recorded.ledger()
    assert log == ["begun", "asked"]


def test_of_a_graph_captured_before_the_replays_are_known(tmp_path: Path, patches: Patches) -> None:
    before = captured()
    before.replay()
    recorded = Recorded(tmp_path, patches)
    for _ in range(3):
        before.replay()
    captured().replay()
    before.reset()
    run = recorded.ledger()
    assert [(each.owner, each.replays) for each in run.graphs] == [
        (UNSEEN, 3),
        ("captured", 1),
    ]
    assert run.graphs[0].end == "reset"
    assert run.graphs[0].replayed_at
    assert "the capture of 1 graph was not recorded" in run.lost[0]
    before.replay()  # after the end: nobody counts


def test_replays_by_a_method_that_was_saved_before_are_counted(
    tmp_path: Path, patches: Patches
) -> None:
    before, later = captured(), Graph()
    function, bound, of_later = Graph.replay, before.replay, later.replay
    recorded = Recorded(tmp_path, patches)
    later.capture_begin()
    later.capture_end()
    for _ in range(2):
        bound()
        function(later)
        of_later()
    run = recorded.ledger()
    assert [(each.owner, each.replays) for each in run.graphs] == [
        ("test_replays_by_a_method_that_was_saved_before_are_counted", 4),
        (UNSEEN, 2),
    ]
    bound()  # after the end: nobody counts
    assert "replay" in vars(GraphInC)


def begin(graph: Graph) -> None:
    graph.capture_begin()


def end(graph: Graph) -> None:
    graph.capture_end()


@contextlib.contextmanager
def capturing(graph: Graph) -> Iterator[None]:
    graph.capture_begin()
    yield
    graph.capture_end()


def engine() -> None:
    graph = Graph()
    begin(graph)
    end(graph)


def draft() -> None:
    graph = Graph()
    with capturing(graph):
        pass


def test_a_helper_that_begins_a_capture_does_not_make_the_graph(recorded: Recorded) -> None:
    engine()
    draft()
    graph = Graph()
    begin(graph)  # The recording ends first.
    first, *others = recorded.ledger().graphs
    end(graph)
    place = recorded.frames[first.frames[0]]
    assert (first.owner, place.function) == ("engine", "engine")
    assert place.line == engine.__code__.co_firstlineno + 2
    assert [each.owner for each in others] == ["draft", "begin"]


def test_a_capture_that_outlives_the_recording_is_kept_as_such(recorded: Recorded) -> None:
    graph = Graph()
    graph.capture_begin()
    run = recorded.ledger()
    graph.capture_end()
    assert [each.failure for each in run.graphs] == ["the recording ended during its capture"]


def test_a_thread_that_has_ended_may_have_broken_the_capture(recorded: Recorded) -> None:
    before = threading.Thread(target=lambda: None, name="before")
    before.start()
    before.join()
    graph = Graph()
    graph.capture_begin()
    loader = threading.Thread(target=lambda: None, name="loader")
    loader.start()
    loader.join()
    text = "CUDA error: operation failed due to a previous error during capture"
    with pytest.raises(RuntimeError):
        try:
            driver_raises(text)
        finally:
            graph.capture_end()
    (failed,) = recorded.ledger().graphs
    assert failed.diagnosis is not None
    assert failed.diagnosis.code == "other-thread-cuda-call"
    assert "loader" in failed.diagnosis.reason
    assert "before" not in failed.diagnosis.reason


@pytest.mark.parametrize(
    ("error", "code"), [(KeyError("x"), "exception-in-capture"), (SystemExit(3), None)]
)
def test_an_exception_of_the_program_ends_the_capture(
    recorded: Recorded, error: BaseException, code: str | None
) -> None:
    graph = Graph()
    graph.capture_begin()
    with pytest.raises(type(error)):
        try:
            raise error
        finally:
            graph.capture_end()
    (failed,) = recorded.ledger().graphs
    assert failed.failure is not None
    if code is None:
        assert failed.diagnosis is None
        assert failed.failure.startswith("SystemExit: 3 at test_recorder.py:")
    else:
        assert failed.failure == "KeyError: 'x'"
        assert failed.diagnosis is not None
        assert (failed.diagnosis.code, failed.diagnosis.reason) == (
            code, "the captured code raised KeyError",
        )  # fmt: skip
        place = recorded.frames[failed.diagnosis.frames[0]]
        assert place.function == "test_an_exception_of_the_program_ends_the_capture"


def test_a_graph_whose_code_has_raised_may_be_replayed(recorded: Recorded) -> None:
    """A capture whose code has raised ends as any other: who handles the error has a graph."""

    def fall_back(graph: Graph) -> None:
        graph.capture_begin()
        try:
            raise ImportError("no fast kernel")
        except ImportError:
            graph.capture_end()

    used, unused = Graph(), Graph()
    fall_back(used)
    fall_back(unused)
    for _ in range(3):
        used.replay()
    del unused
    used.reset()
    first, second = recorded.ledger().graphs
    assert (first.failure, first.diagnosis, first.replays, first.end) == (None, None, 3, RESET)
    assert (first.pool, first.graph) == ((0, 1), 0)
    assert (second.failure, second.replays, second.end) == ("ImportError: no fast kernel", 0, None)
    assert (second.pool, second.graph) == (None, None)
    assert second.diagnosis is not None
    assert second.diagnosis.code == "exception-in-capture"


@pytest.mark.parametrize("error", [TimeoutError("too long"), KeyboardInterrupt()])
def test_what_a_signal_handler_raises_goes_through(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """While the recorder reads a graph: the program gets its error, and the capture is over."""

    def interrupted(_device: Device) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)

    def handler(_number: int, _frame: object) -> None:
        raise error

    monkeypatch.setattr(Device, "free_bytes", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    graph = Graph()
    graph.capture_begin()
    try:
        with pytest.raises(type(error)):
            graph.capture_end()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not recorded.recorder._captures.is_capturing(threading.get_ident())
    captured().replay()
    run = recorded.ledger()
    assert [each.replays for each in run.graphs] == [0, 1]
    assert str(run.graphs[0].failure).startswith(type(error).__name__)
    assert run.lost == ()


def test_a_capture_inside_a_capture_of_its_thread(recorded: Recorded) -> None:
    outer = Graph()
    outer.capture_begin()
    nested: Any = types.SimpleNamespace(cuda_graph=Graph(), capture_error_mode="global")
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing")
    recorded.recorder.refused_before(nested, error)
    outer.capture_end()
    _, refused = recorded.ledger().graphs
    assert refused.diagnosis is not None
    assert refused.diagnosis.code == "api-order-misuse"
    assert "its thread is capturing another graph" in refused.diagnosis.reason


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_a_capture_is_ended_by_another_inside_it(recorded: Recorded, is_swallowed: bool) -> None:
    def begin_inside() -> None:
        nested: Any = types.SimpleNamespace(cuda_graph=Graph(), capture_error_mode="global")
        try:
            driver_raises("operation not permitted when stream is capturing")
        except RuntimeError as error:
            recorded.recorder.refused_before(nested, error)
            raise

    outer = Graph()
    outer.capture_begin()
    with pytest.raises(RuntimeError):
        try:
            with contextlib.suppress(RuntimeError) if is_swallowed else contextlib.nullcontext():
                begin_inside()
            driver_raises("operation failed due to a previous error during capture")
        finally:
            outer.capture_end()
    ended, refused = recorded.ledger().graphs
    assert ended.diagnosis is not None
    assert ended.diagnosis.code == "api-order-misuse"
    assert ended.diagnosis.frames == refused.frames


def test_captures_at_once_break_each_other(recorded: Recorded) -> None:
    def enter() -> None:
        context: Any = types.SimpleNamespace(cuda_graph=Graph(), capture_error_mode="global")
        with contextlib.suppress(Exception):  # there is no device to synchronize
            torch.cuda.graph.__enter__(context)

    def failed() -> None:
        graph = Graph()
        graph.capture_begin()
        with pytest.raises(RuntimeError):
            try:
                driver_raises("operation failed due to a previous error during capture")
            finally:
                graph.capture_end()

    def on_a_thread() -> None:
        thread = threading.Thread(target=enter, name="other engine")
        thread.start()
        thread.join()

    on_a_thread()  # before: does not matter
    enter()  # nor does the own thread
    failed()
    begin = Graph.capture_begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "capture_begin", lambda graph: (begin(graph), on_a_thread()))
        failed()
    graphs = recorded.ledger().graphs
    causes = [each.diagnosis for each in graphs if "previous error" in str(each.failure)]
    assert ["other engine" in str(cause and cause.reason) for cause in causes] == [False, True]
    assert causes[1] is not None
    assert causes[1].code == "other-thread-cuda-call"
    assert "one after the other" in str(causes[1].fix)
    refused = [each for each in graphs if "previous error" not in str(each.failure)]
    assert [each.thread for each in refused] == ["other engine", "MainThread", "other engine"]
    assert all(each.failure and each.frames and each.mode == "global" for each in refused)


def test_a_capture_is_refused_while_another_thread_captures(recorded: Recorded) -> None:
    class Refused:
        cuda_graph = Graph()
        capture_error_mode = "thread_local"

        def __enter__(self) -> None:
            driver_raises("CUDA error: operation not permitted when stream is capturing")

    graph = Graph()
    thread = threading.Thread(target=graph.capture_begin, name="engine")
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError) as raised:
        Refused().__enter__()
    recorded.recorder.refused_before(Refused(), raised.value)
    graph.capture_end()
    first, refused = recorded.ledger().graphs
    assert (first.failure, refused.mode) == (None, "thread_local")
    assert refused.diagnosis is not None
    assert refused.diagnosis.code == "other-thread-cuda-call"
    assert "engine" in refused.diagnosis.reason


def test_a_capture_that_is_refused_at_its_beginning_has_failed(recorded: Recorded) -> None:
    cgtool.note(batch=4)
    with pytest.raises(RuntimeError):
        Graph().capture_begin(pool=(0, 1))
    captured().replay()
    refused, after = recorded.ledger().graphs
    assert (refused.number, refused.key, refused.graph) == (0, "batch 4", None)
    assert refused.failure == "RuntimeError: CUDA graphs must be captured on a non-default stream."
    assert refused.diagnosis is not None
    assert refused.diagnosis.code == "api-order-misuse"
    assert (after.number, after.replays, after.failure) == (1, 1, None)


def test_a_graph_that_is_captured_again_after_a_reset(recorded: Recorded) -> None:
    graph = captured()
    graph.replay()
    graph.reset()
    graph.capture_begin()
    graph.capture_end()
    first, again = recorded.ledger().graphs
    assert (first.end, first.because, again.because) == (RESET, None, RESET)


def test_notes_of_a_killed_process_are_there(recorded: Recorded) -> None:
    graph, other = captured(), captured()
    for batch in (1, 2, 2):
        cgtool.note(batch=batch)
        graph.replay()
        graph.replay()  # was not noted
    cgtool.note(batch=7, seed=10**400)  # which no float holds
    other.replay()
    first, second = recorded.ledger(killed=True).graphs
    assert values(first) == [((1,), 1), ((2,), 2)]
    assert values(second) == [((7,), 1)]
    assert first.replays == 6


def test_what_torch_compile_compiles_is_recorded(recorded: Recorded) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum()

    torch.compiler.reset()
    before = Counter(counters["frames"])["ok"]
    compiled = torch.compile(loss)
    begin = time.time_ns()
    for size in (3, 3, 5, 7):
        compiled(torch.ones(size))
    compiled(torch.ones(5, requires_grad=True)).backward()
    with pytest.raises(Unsupported):
        torch.compile(lambda: print(), fullgraph=True)()  # nothing new can run
    run = recorded.ledger()
    assert len(run.compiles) == counters["frames"]["ok"] - before == 3
    assert {(each.compiler, each.name) for each in run.compiles} == {(COMPILE, "loss")}
    first, again, _ = run.compiles
    assert begin < first.began_ns < first.began_ns + first.duration_ns <= again.began_ns
    assert first.because is None
    assert again.because is not None
    assert "size mismatch" in again.because
    assert recorded.frames[again.frames[0]].file == __file__


def test_a_text_is_noted_as_its_beginning(recorded: Recorded) -> None:
    cgtool.note(mode="decode", rows=2.5)
    graph = captured()
    cgtool.note(mode="x" * 1000, batch=3)
    graph.replay()
    (only,) = recorded.ledger().graphs
    assert only.key == "mode decode, rows 2.5"
    assert values(only) == [((3.0,), 1)]
    assert only.notes[0].texts == (("mode", "x" * 100),)


def test_what_is_noted_before_a_capture_is_the_key_of_the_graph(recorded: Recorded) -> None:
    cgtool.note(rows=13, padded_rows=16, cache=[], seed=10**400)
    graph = captured()
    graph.replay()
    (only,) = recorded.ledger().graphs
    assert only.key == "rows 16"
    assert only.notes == ()


def test_a_capture_of_torch_compile_leaves_the_note_to_the_replay(recorded: Recorded) -> None:
    trees = str(Path(torch.__file__).parent / "_inductor" / "cudagraph_trees.py")
    functions: dict[str, Any] = {}
    exec(compile("def warm_up(capture):\n    return capture()\n", trees, "exec"), functions)
    graph = captured()
    cgtool.note(batch=1)
    functions["warm_up"](captured)
    graph.replay()
    first, pool = recorded.ledger().graphs
    assert (pool.owner, pool.key) == (COMPILE, "")
    assert values(first) == [((1,), 1)]


def test_a_graph_has_a_bounded_number_of_notes(recorded: Recorded) -> None:
    graph = captured()
    for length in range(12_000):
        cgtool.note(length=length)
        graph.replay()
    for length in range(2_000):
        cgtool.note(**{f"name{length}": length})
        graph.replay()
    (only,) = recorded.ledger().graphs
    assert sum(noted.replays for noted in only.notes) == 14_000
    assert len(only.notes) <= 2_001
    # Rounded to two digits: from 11,500 on, all are counted as 12,000.
    assert dict(values(only))[(12_000,)] == 500
    assert any(noted.names == () for noted in only.notes)


def test_what_is_noted_outside_a_recording_is_not_kept(tmp_path: Path, patches: Patches) -> None:
    cgtool.note(batch=1)
    recorded = Recorded(tmp_path, patches)
    captured().replay()
    (only,) = recorded.ledger().graphs
    assert only.notes == ()


def test_events_are_kept_of_a_killed_process_and_not_without_end(recorded: Recorded) -> None:
    graph = captured()
    graph.replay()
    for step in range(10_005):
        cgtool.event("step" if step else "first")
    graph.replay()
    cgtool.event("\ud800 last")
    run = recorded.ledger(killed=True)
    assert len(run.events) == 10_001
    first, *_, last = run.events
    assert (first.name, first.replays) == ("first", 1)
    assert (last.name, last.replays) == ("\\ud800 last", 2)
    assert recorded.frames[first.frames[0]].file == __file__
    assert run.lost == ("process 1: events after the first 10,000",)


def test_replays_without_a_gpu_time_are_counted(recorded: Recorded) -> None:
    graph = captured()
    for _ in range(3):
        graph.replay()
    recorded.journal.replay_time(0, 2, 5000)
    recorded.journal.gpu_time(5000, 1000)
    run = recorded.ledger()
    assert (run.graphs[0].timed_replays, run.graphs[0].replay_gpu_ns) == (2, 5000)
    assert run.graphs[0].first_replay_host_ns
    assert (run.graphs_gpu_ns, run.gpu_ns) == (5000, 6000)
    assert run.lost == ("process 1: only 2 of 3 replays have a GPU time",)


def on_a_thread(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def collect() -> None:
    gc.collect()


@pytest.fixture
def only_these_collections() -> Iterator[None]:
    """The collector runs when it is called, and not by itself."""
    gc.disable()
    yield
    gc.enable()


def test_captures_at_once_are_marked_and_each_has_its_own_collections(
    recorded: Recorded, only_these_collections: None
) -> None:
    captured()
    first, second = Graph(), Graph()
    first.capture_begin()

    def other() -> None:
        second.capture_begin()
        gc.collect()
        second.capture_end()

    on_a_thread(other)
    first.capture_end()
    third = Graph()
    third.capture_begin()
    on_a_thread(collect)  # for which the capture waits
    third.capture_end()
    graphs = recorded.ledger().graphs
    assert [each.overlaps for each in graphs] == [False, True, True, False]
    assert [each.collector_ns > 0 for each in graphs[1:]] == [False, True, True]


class Replaying(torch.autograd.Function):
    """A graphed function, as ``make_graphed_callables`` makes it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Graph, backward: Graph) -> torch.Tensor:
        ctx.backward_graph = backward
        forward.replay()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient.sin()
        ctx.backward_graph.replay()
        gradient.cos()
        return gradient, None, None


# As if of PyTorch: without a line of the program's.
for function in (Replaying.forward, Replaying.backward):
    function.__code__ = function.__code__.replace(co_filename=torch.__file__)


def test_a_backward_belongs_to_the_thread_that_waits_for_it(recorded: Recorded) -> None:
    """On a GPU, autograd replays it on a thread of its own."""
    forward, backward = captured(), captured()

    def train() -> None:
        x = torch.ones(2, requires_grad=True)
        with backwards_on_threads(types.SimpleNamespace(current=None)):
            for step in range(2):
                y = Replaying.apply(x, forward, backward)
                note(step=step)
                y.backward(torch.ones(2))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    run = recorded.ledger()
    (place,) = run.graphs[1].replayed_at
    assert place.seen == 2
    functions = [recorded.frames[frame].function for frame in place.frames]
    assert functions[0].endswith("train")
    assert [values(graph) for graph in run.graphs] == [[], [((0.0,), 1), ((1.0,), 1)]]


def test_no_frame_outlives_its_function(recorded: Recorded) -> None:
    """A frame in a cycle would hold the program's tensors until the garbage collector runs: graph
    trees fail, and autograd copies a gradient that it would take."""
    forward, backward = captured(), captured()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        with backwards_on_threads(types.SimpleNamespace(current=None)):
            for _ in range(3):
                x = torch.ones(2, requires_grad=True)
                Replaying.apply(x, forward, backward).backward(torch.ones(2))
                captured().replay()
                with contextlib.suppress(RuntimeError):
                    Graph().capture_begin((0, 1))
        gc.collect()
        frames = [each.f_code.co_qualname for each in gc.garbage if isinstance(each, FrameType)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert frames == []


def test_names_that_are_not_utf_8_are_kept(recorded: Recorded) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    functions: dict[str, Any] = {}
    exec(compile("def step():\n    return captured()\n", name, "exec"), globals(), functions)
    functions["step"]().replay()
    recorded.journal.lost(name)
    run = recorded.ledger()
    assert run.lost == (r"process 1: caf\udce9.py",)
    assert [each.replays for each in run.graphs] == [1]
    assert len(run.graphs[0].frames) > 1


class UsedDevice(Device):
    """Takes as long to prepare as a test wants."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.ended = (threading.Event() for _ in range(3))

    def when_used(self, call: Callable[[], None]) -> None:
        self.use = call

    def prepare(self) -> None:
        assert not self.begun.is_set(), "once"
        self.begun.set()
        self.may_end.wait(20)
        self.ended.set()


def test_what_captures_need_is_imported_as_soon_as_the_device_is_used(
    tmp_path: Path, patches: Patches
) -> None:
    device = UsedDevice()
    recorder = Recorder(device, JournalWriter(tmp_path, "1-1"), patches)
    device.use()
    assert device.begun.wait(20)
    threading.Timer(0.1, device.may_end.set).start()
    captured()
    assert device.ended.is_set(), "the capture waits"
    recorder.stop()


def test_neither_a_fork_nor_the_end_of_the_process_comes_in_between(
    tmp_path: Path, patches: Patches
) -> None:
    device = UsedDevice()
    recorder = Recorder(device, JournalWriter(tmp_path, "1-1"), patches)
    device.use()
    assert device.begun.wait(20)
    threading.Timer(0.1, device.may_end.set).start()
    with recorder.forkable:
        assert device.ended.is_set()
    recorder.stop()
    other = UsedDevice()
    with Patches() as again:
        recorder = Recorder(other, JournalWriter(tmp_path, "1-2"), again)
        recorder.stop()
        other.use()
    assert not other.begun.wait(0.1)


@pytest.mark.parametrize("in_python", [True, False])
def test_where_captures_take_long_the_faster_recorder_is_named(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, in_python: bool
) -> None:
    monkeypatch.setattr(Device, "in_python", in_python)
    graph = Graph()
    graph.capture_begin()
    graph.capture_end()
    # Another process compiles it while this one runs.
    needed = [
        record.python
        for journal in read_journals(recorded._folder)
        for record in journal.records()
        if isinstance(record, NeedsRecorder)
    ]
    assert needed == [sys.executable] * in_python
    monkeypatch.setattr(Device, "in_python", False)
    graph.capture_begin()
    graph.capture_end()
    recorded.ledger()
    texts = [caveat.text for caveat in recorded.caveats]
    assert ["1 of 2 captures took" in text for text in texts] == [True] * in_python


def test_a_graph_may_end_while_another_that_uses_its_memory_is_captured(
    tmp_path: Path, patches: Patches
) -> None:
    """As one in a cycle does when the garbage collector runs."""
    device, journal = Device(), JournalWriter(tmp_path, "1-1")
    addresses = Addresses(device, journal, patches)
    first, second = GraphReplays(0), GraphReplays(1)
    x, y = StorageRef(torch.ones(1)), StorageRef(torch.ones(1))
    assert addresses.captured(first, [x], sys._getframe(), ()) == [0]
    device.allocated_at = lambda _: addresses.ended(first) or {}  # type: ignore[method-assign]
    assert addresses.captured(second, [x, y], sys._getframe(), ()) == [0, 1]
    assert addresses.captured(second, [x, y], sys._getframe(), ()) == [0, 1]


def test_a_pool_may_end_while_the_memory_of_a_graph_is_looked_for(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[Graph] = []

    class Segments(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            graphs.clear()  # as the garbage collector does
            return iter(())

    pools = ((0, number) for number in range(1, 4))
    monkeypatch.setattr(Graph, "pool", lambda _: next(pools))
    monkeypatch.setattr(Device, "pool_segments", lambda *_: Segments())
    for _ in range(2):
        graphs.append(captured())
    last = captured()
    assert not recorded.ledger().lost, last
