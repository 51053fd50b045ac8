"""What PyTorch itself says of a capture, on a machine whose graphs the tests lead."""

from __future__ import annotations

import contextlib
import functools
import pickle
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._device import _device_constructors

from cgtool.detectors.reporting import FindingLog
from cgtool.detectors.script.run import observe
from cgtool.model.ledger import COMPILE
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.graphs import Beginning
from cgtool.observe.ops import OpRecorder, op_name
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.storages import StorageRef

EMPTY = "The CUDA Graph is empty. This usually means that the graph was attempted to be captured"
MISMATCH = "The AccumulateGrad node's stream does not match the stream of the node that produced"


class Graph:
    """Captures nothing."""

    warns = ""
    error = ""

    def __init__(self) -> None:
        self.nodes = ["a", "b"]

    def capture_begin(self) -> None: ...

    def capture_end(self) -> None:
        if self.warns:
            warnings.warn(self.warns, stacklevel=1)
        if self.error:
            raises_like_torch(self.error)()

    def instantiate(self) -> None: ...

    def raw_cuda_graph(self) -> list[str]:
        return self.nodes

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return 0, 1


class GPU:
    """Answers as a GPU does."""

    simulated = False
    handle = 5

    def __init__(self) -> None:
        self.graph_class = type("Graph", (Graph,), dict(vars(Graph)))
        self.recorder: OpRecorder | None = None

    def ran_on_host(self, _values: Any) -> bool:
        return False

    def place(self, _tensor: torch.Tensor) -> str:
        return "device"

    def address(self, storage: StorageRef) -> int:
        return storage.address

    def is_dead(self, ref: StorageRef) -> bool:
        return ref.expired()

    def stream_is_captured(self) -> bool:
        return False

    def is_in_pool(self, _address: int, _pool: tuple[int, int]) -> bool:
        return False

    def pool_bytes(self, _pool: tuple[int, int]) -> int:
        return 0

    def keeps_graph(self, _graph: Any) -> bool:
        return True

    def generator_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def captured_nodes(self) -> int:
        return 0

    def thread_modes(self) -> list[Any]:
        return []

    def stream(self) -> int:
        return self.handle


@pytest.fixture
def findings() -> FindingLog:
    return FindingLog()


@pytest.fixture
def script(findings: FindingLog) -> Any:
    with Patches() as patches:
        annotations = patches.enter_context(watch_annotations())
        script = ObservedScript(GPU(), annotations)
        observe(script, findings, patches)
        yield script


def at_lines(findings: FindingLog) -> list[tuple[str, int]]:
    return [(finding.code, finding.frames[0].line) for finding in findings.all()]


def line() -> int:
    return sys._getframe(1).f_lineno


class Captured:
    """``torch.cuda.graph``."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        self.graph.capture_begin()

    def __exit__(self, *_: Any) -> None:
        self.graph.capture_end()


def raises_like_torch(sentence: str) -> Any:
    """A function of a file of torch's."""
    file = Path(torch.__file__).with_name("random.py")
    names: dict[str, Any] = {}
    exec(
        compile(f"def draw(*_):\n    raise RuntimeError({sentence!r})\n", str(file), "exec"), names
    )
    return names["draw"]


REFUSED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"


def calls(function: Any) -> Any:
    function()


def runs_in_a_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def waits_and_says_nothing() -> None:
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()


LOOKED_UP = [
    (namespace, function.__name__, function)
    for namespace, functions in torch.overrides.get_overridable_functions().items()
    for function in functions
    if getattr(namespace, function.__name__, None) is function
]


@pytest.fixture
def no_constructors() -> Any:
    """PyTorch looks up once which functions make tensors on the device of a context."""
    _device_constructors.cache_clear()
    yield
    _device_constructors.cache_clear()


def test_a_device_as_a_context_has_the_tensors_that_code_makes_of_numbers(
    no_constructors: None, script: ObservedScript
) -> None:
    with torch.device("meta"):
        made = [torch.tensor([1.0]), torch.as_tensor([1.0]), torch.asarray([1.0])]
    assert [each.device.type for each in made] == ["meta"] * 3


def test_functions_that_pytorch_looks_up_are_equal_to_its_own(script: ObservedScript) -> None:
    assert len(LOOKED_UP) > 500
    others = [name for namespace, name, own in LOOKED_UP if getattr(namespace, name) not in {own}]
    assert others == []


def test_functions_are_pickled_by_name(script: ObservedScript) -> None:
    functions = torch.tensor, torch.Tensor.tolist, torch.Tensor.__reduce_ex__
    assert pickle.loads(pickle.dumps(functions)) == functions


@pytest.mark.parametrize("function", [calls, waits_and_says_nothing], ids=["raises", "swallows"])
def test_a_call_of_another_thread_that_cuda_refuses_ends_the_capture(
    function: Any, findings: FindingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = raises_like_torch(REFUSED)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    monkeypatch.setattr(threading, "excepthook", lambda _failure: None)
    with Patches() as patches:
        script = ObservedScript(GPU(), patches.enter_context(watch_annotations()))
        observe(script, findings, patches)
        graph = script.device.graph_class()
        graph.error = INVALIDATED
        graph.capture_begin()
        runs_in_a_thread(functools.partial(function, *[refuse] * (function is calls)))
        with pytest.raises(RuntimeError):
            graph.capture_end()
    at = function.__code__.co_firstlineno + (1 if function is calls else 2)
    assert at_lines(findings) == [("other-thread-cuda-call", at)]


def test_the_printed_error_of_a_thread_shows_nothing_of_cgtool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", raises_like_torch(REFUSED))
    monkeypatch.setattr(threading, "excepthook", printed.append)
    with Patches() as patches:
        script = ObservedScript(GPU(), patches.enter_context(watch_annotations()))
        observe(script, FindingLog(), patches)
        runs_in_a_thread(lambda: torch.cuda.synchronize())
    frames = traceback.extract_tb(printed[0].exc_traceback)
    assert [frame.name for frame in frames][-2:] == ["<lambda>", "draw"]
    assert not any("/cgtool/observe/" in frame.filename for frame in frames)


def test_an_error_of_a_thread_that_is_not_about_a_capture_is_none_of_a_capture(
    script: ObservedScript, findings: FindingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _failure: None)
    with Captured(script.device.graph_class()):
        runs_in_a_thread(raises_like_torch("no such file"))
    assert at_lines(findings) == []


def test_what_the_main_thread_raises_after_a_capture_is_none_of_another_thread(
    findings: FindingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", raises_like_torch(REFUSED))
    with Patches() as patches:
        script = ObservedScript(GPU(), patches.enter_context(watch_annotations()))
        observe(script, findings, patches)
        with Captured(script.device.graph_class()):
            pass
        waits_and_says_nothing()
    assert at_lines(findings) == []


def test_ops_of_a_thread_class_with_its_own_run_are_not_captured(
    script: ObservedScript, published: list[Any]
) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            torch.ones(2) * 2

    worker = Worker()
    with Captured(script.device.graph_class()):
        worker.start()
        worker.join()
    kinds = {type(event) for event in published}
    assert events.ThreadWorked in kinds
    assert events.OpCaptured not in kinds


OPERATOR_LINE = line() + 3


@torch.library.custom_op("script_observers::refused", mutates_args=())
def refused_operator(x: torch.Tensor) -> torch.Tensor:
    item = raises_like_torch(REFUSED)
    return x * item()


def test_an_error_in_a_custom_op_has_the_line_of_the_op(
    script: ObservedScript, findings: FindingLog
) -> None:
    graph = script.device.graph_class()
    graph.error = INVALIDATED
    graph.capture_begin()
    with contextlib.suppress(RuntimeError):
        refused_operator(torch.ones(2))
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert at_lines(findings) == [("sync-item", OPERATOR_LINE + 3)]


def test_an_op_of_another_thread_that_cuda_refuses_ends_the_capture(
    script: ObservedScript, findings: FindingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinning memory is such an op, and has no tensor on the device."""
    monkeypatch.setattr(script.device, "place", lambda _tensor: "host")
    graph = script.device.graph_class()
    graph.error = INVALIDATED
    graph.capture_begin()

    def pins() -> None:
        with contextlib.suppress(RuntimeError):
            refused_operator(torch.ones(2))

    runs_in_a_thread(pins)
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert at_lines(findings) == [("other-thread-cuda-call", OPERATOR_LINE + 3)]


def test_an_error_has_the_line_of_its_op_when_the_capture_ends_well(
    script: ObservedScript, findings: FindingLog
) -> None:
    draw = raises_like_torch("Attempt to increase offset for a CUDA generator not in capture mode.")
    at = 0
    with pytest.raises(RuntimeError), Captured(script.device.graph_class()):
        at = line() + 1
        draw()
    assert at_lines(findings) == [("rng-unregistered-generator", at)]


def test_a_graph_is_empty_when_pytorch_says_so(
    script: ObservedScript, findings: FindingLog
) -> None:
    graph = script.device.graph_class()
    graph.warns = EMPTY
    for _ in range(2):
        at = line() + 1
        graph.capture_begin()
        torch.ones(2) * 2
        with pytest.warns(UserWarning, match="CUDA Graph is empty"):
            graph.capture_end()
    assert at_lines(findings) == [("empty-graph", at)]
    assert findings.all()[0].times == 2
    assert "no op of the capture" in findings.all()[0].reason


def test_a_graph_without_ops_of_pytorchs_is_not_empty(
    script: ObservedScript, findings: FindingLog
) -> None:
    with Captured(script.device.graph_class()):
        pass
    assert at_lines(findings) == []


def _backward(script: ObservedScript, hook: Any) -> int:
    weight: Any = torch.ones(2, requires_grad=True)
    with Captured(script.device.graph_class()):
        loss: Any = (weight * 2).sum()
        weight.register_hook(hook)
        at = line() + 1
        loss.backward()
    return at


def test_pytorch_warns_of_old_accumulators(script: ObservedScript, findings: FindingLog) -> None:
    for _ in range(2):
        with pytest.warns(UserWarning, match="AccumulateGrad"):
            at = _backward(script, lambda _: warnings.warn(MISMATCH, stacklevel=1))
    assert at_lines(findings) == [("accumulate-grad-cross-stream-growth", at)]
    assert findings.all()[0].times == 2


def test_gradients_on_streams_of_the_capture_are_fine(
    script: ObservedScript, findings: FindingLog
) -> None:
    _backward(script, lambda _: None)
    assert at_lines(findings) == []


def test_events_reach_subscribers_of_their_type_in_order() -> None:
    publisher = events.Publisher()
    received: list[tuple[str, object]] = []
    publisher.subscribe(events.Seeded, lambda event: received.append(("first", event)))
    publisher.subscribe(events.Seeded, lambda event: received.append(("second", event)))
    publisher.subscribe(events.ScriptEnded, lambda event: received.append(("other", event)))
    publisher.publish(events.Seeded())
    assert received == [("first", events.Seeded()), ("second", events.Seeded())]
    publisher.closed = True
    publisher.publish(events.Seeded())
    assert len(received) == 2


@pytest.fixture
def published(script: ObservedScript) -> list[Any]:
    """All events of captures and threads, in order."""
    received: list[Any] = []
    for kind in (
        events.CaptureBegan, events.OpCaptured, events.CaptureEnded, events.CaptureFailed,
        events.ThreadWorked, events.GraphDropped,
    ):  # fmt: skip
        script.subscribe(kind, received.append)
    return received


def test_a_capture_publishes_its_ops(script: ObservedScript, published: list[Any]) -> None:
    outside = torch.ones(2)
    graph = script.device.graph_class()
    with Captured(graph):
        outside * 2
    began, op, ended = published
    assert isinstance(began, events.CaptureBegan)
    assert isinstance(ended, events.CaptureEnded)
    assert began.graph is op.graph is ended.graph
    assert op.op.name == "aten::mul.Tensor"
    (use,) = op.graph.external.values()
    assert op.first_uses == [use]
    assert use.buffer is script.buffers.find(outside)
    assert (use.written, use.shape) == (False, (2,))
    assert len(op.graph.allocated) == 1


def test_an_error_in_the_captured_code_fails_the_capture(
    script: ObservedScript, published: list[Any]
) -> None:
    with pytest.raises(ValueError), Captured(script.device.graph_class()):
        raise ValueError
    failed = published[-1]
    assert isinstance(failed, events.CaptureFailed)
    assert isinstance(failed.code_error, ValueError)
    assert failed.graph.state == "failed"


def test_only_work_of_another_thread_disturbs_a_capture(
    script: ObservedScript, published: list[Any]
) -> None:
    tensor = torch.ones(2)

    def in_thread(function: Any) -> None:
        thread = threading.Thread(target=function, name="side")
        thread.start()
        thread.join()

    graph = script.device.graph_class()
    graph.capture_begin()
    in_thread(tensor.detach)
    assert not script.capture.disturbed
    in_thread(lambda: tensor + 1)
    assert script.capture.disturbed
    graph.capture_end()
    assert [event.thread for event in published if isinstance(event, events.ThreadWorked)] == [
        "side"
    ]


def _train_compiled() -> tuple[list[float], dict[str, dict[str, int]]]:
    """Losses, and what Dynamo counted, of a program that compiles a module and a function."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4))
    compiled = torch.compile(model, backend="aot_eager")

    @torch.compile(backend="aot_eager")
    def loss_of(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch_size in (2, 2, 3):
        loss = loss_of(compiled(torch.randn(batch_size, 4)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: dict(counts) for name, counts in counters.items()}


def test_compiled_code_runs_as_without_observers(
    findings: FindingLog, recwarn: pytest.WarningsRecorder
) -> None:
    plain = _train_compiled()
    with Patches() as patches:
        annotations = patches.enter_context(watch_annotations())
        script = ObservedScript(GPU(), annotations)
        observe(script, findings, patches)
        names: list[str] = []
        patches.set(script, "eager_op", lambda op, *_: names.append(op_name(op)))
        assert _train_compiled() == plain
    assert plain[1]["stats"]["unique_graphs"] > 1
    assert "aten::add_.Tensor" in names, "the optimizer, which is not compiled, is observed"
    assert not any("global hooks" in str(warning.message) for warning in recwarn)


def _compile_what_is_observed() -> dict[str, Any]:
    """What Dynamo counted of functions that call what is observed, and what they returned."""
    model = torch.nn.Linear(4, 4)

    def trains(x: torch.Tensor) -> torch.Tensor:
        model.train()
        model.zero_grad()
        return model(x)

    def lists(x: torch.Tensor) -> torch.Tensor:
        return x + sum(x[0].tolist())

    def seeds(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return x + torch.rand(4)

    def goes_backward(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    counted = {}
    for function in (trains, lists, seeds, goes_backward):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model.reset_parameters()
        compiled = torch.compile(function, backend="aot_eager")
        results = [compiled(torch.ones(2, 4)).sum().item() for _ in range(2)]
        counted[function.__name__] = results, {name: dict(each) for name, each in counters.items()}
    return counted


def test_dynamo_traces_nothing_of_cgtool(findings: FindingLog) -> None:
    plain = _compile_what_is_observed()
    with Patches() as patches:
        script = ObservedScript(GPU(), patches.enter_context(watch_annotations()))
        observe(script, findings, patches)
        assert _compile_what_is_observed() == plain


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_module_is_not_compiled_anew_in_a_capture(
    script: ObservedScript, published: list[Any]
) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    model.compile(backend="aot_eager")
    model(torch.ones(2, 4))
    model(torch.ones(2, 4))
    compiled = dict(counters["frames"])
    with Captured(script.device.graph_class()):
        model(torch.ones(2, 4))
    assert counters["frames"] == compiled
    script.subscribe(events.ModuleRuns, published.append)
    with Captured(script.device.graph_class()):
        model[0](torch.ones(2, 4))
    assert [type(event) for event in published].count(events.ModuleRuns) == 1


def test_compilation_in_a_capture(script: ObservedScript, published: list[Any]) -> None:
    script.subscribe(events.CompiledInCapture, published.append)
    function = torch.compile(lambda tensor: tensor * 2, backend="aot_eager")
    with Captured(script.device.graph_class()):
        function(torch.ones(2))
        function(torch.ones(2))
    assert [type(event) for event in published].count(events.CompiledInCapture) == 1


def test_an_op_that_is_refused_is_reported_although_the_code_catches_the_error(
    script: ObservedScript, findings: FindingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, tensor = script.device.graph_class(), torch.ones(2)

    refuse = raises_like_torch("CUDA error: operation not permitted when stream is capturing")
    graph.error = "CUDA error: operation failed due to a previous error during capture"
    graph.capture_begin()
    monkeypatch.setattr(script.device.recorder, "execute", refuse)
    line = sys._getframe().f_lineno + 2
    with contextlib.suppress(RuntimeError):
        tensor.sum()
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert [place for _, place in at_lines(findings)] == [line]


def test_unjoined_work_is_reported_at_its_line(
    script: ObservedScript, findings: FindingLog
) -> None:
    graph, tensor = script.device.graph_class(), torch.ones(2)
    graph.error = "CUDA error: capturing stream has unjoined work"
    graph.capture_begin()
    script.device.handle = 7
    line = sys._getframe().f_lineno + 1
    tensor.sum()
    script.device.handle = GPU.handle
    with pytest.raises(RuntimeError):
        graph.capture_end()
    assert at_lines(findings) == [("unjoined-side-stream", line)]


def captured_by_inductor(graph: Any) -> None:
    """Capture and replay a graph in a file of Inductor's."""
    file = Path(torch.__file__).with_name("_inductor") / "cudagraph_trees.py"
    names: dict[str, Any] = {"captured": Captured}
    text = "def run(graph):\n    with captured(graph):\n        pass\n    graph.replay()\n"
    exec(compile(text, str(file), "exec"), names)
    names["run"](graph)


def test_graphs_of_compiled_code_are_counted_and_not_checked(
    script: ObservedScript, findings: FindingLog, published: list[Any]
) -> None:
    captured_by_inductor(script.device.graph_class())
    assert published == []
    assert (len(script.compiled), script.compiled_replays, script.graphs) == (1, 1, [])
    script.finish()
    assert at_lines(findings) == []


def test_what_compiled_code_records_again_or_does_not_capture(
    script: ObservedScript, findings: FindingLog
) -> None:
    chain = ((line.__code__, 0),)
    moved = "static input data pointer changed.\ninput name: primals_1. data pointer changed"
    for key, because in (("0/0 forward", None), ("0/0 forward", moved), ("0/1 forward", None)):
        beginning = Beginning(None, None, "global", chain, COMPILE, key, because)
        script.capture_began(beginning, None, None)
    script.skipped("skipping cudagraphs due to mutated inputs (1 instances)")
    script.finish()
    assert [finding.code for finding in findings.all()] == [
        "rerecorded-static-input",
        "recaptured-after-recompile",
        "cudagraphs-skipped",
    ]
    assert findings.all()[0].frames[0].function == "line"
    assert findings.all()[0].evidence == (
        "1 capture",
        "inputs: primals_1 (1 time)",
        "graph 0/0 forward",
    )


def test_a_graph_that_is_freed_in_its_capture_is_not_followed_any_further(
    script: ObservedScript, findings: FindingLog, published: list[Any]
) -> None:
    graph = script.device.graph_class()
    graph.capture_begin()
    del graph
    assert script.capture is None
    assert script.graphs[0].state == "failed"
    torch.ones(2) * 2
    with Captured(script.device.graph_class()):
        torch.ones(2) * 2
    assert [type(event) for event in published].count(events.OpCaptured) == 2
    assert at_lines(findings) == []


SEEDS = """
import sys
import torch
from cgtool.detectors.reporting import FindingLog
from cgtool.detectors.script.run import observe
from cgtool.observe.script.script import ObservedScript
from cgtool.torch_compat.patches import Patches

class Device:
    simulated = False
    ran_on_host = staticmethod(lambda values: False)
    graph_class = type("Graph", (), dict.fromkeys(
        ("capture_begin", "capture_end", "replay", "reset"), lambda self: None))
    recorder = None
    generator_state = staticmethod(torch.get_rng_state)

assert "torch._dynamo" not in sys.modules
if sys.argv[1] == "observed":
    patches = Patches()
    observe(ObservedScript(Device(), None), FindingLog(), patches)

from torch._dynamo.utils import counters
from torch.utils._device import _device_constructors

@torch.compile(backend="eager")
def seeds(x):
    torch.manual_seed(3)
    return x + torch.rand(4)

seeds(torch.ones(2, 4))
print(dict(counters["frames"]), dict(counters["stats"]))
"""


def test_a_script_may_import_dynamo_after_the_observers() -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", SEEDS, kind], stdout=subprocess.PIPE, text=True)
        for kind in ("plain", "observed")
    ]
    plain, observed = (run.communicate()[0] for run in runs)
    assert observed == plain != ""
