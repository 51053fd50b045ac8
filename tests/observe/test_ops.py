"""The op record: which forward call made the autograd node that runs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch._dynamo.utils import counters

from cgtool.observe.annotations import Annotations
from cgtool.observe.effects import written_by
from cgtool.observe.ops import OpRecorder, RootedModuleNames
from cgtool.torch_compat import op_key


def on_another_thread(function):
    """Run ``function`` where autograd's numbers begin at 0, as on its own threads."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def begin(recorder):
    return recorder.begin(torch.ops.aten.add.Tensor, sys._getframe())


def test_a_backward_op_leads_to_the_forward_op_that_made_its_node():
    x = torch.ones(3, requires_grad=True)
    recorder = OpRecorder({}, Annotations())
    with recorder:
        y = x.sin().cos().sum()
        y.backward()
    record = recorder.record
    forward = {
        call.autograd_node: record.forward_of(call).name
        for call in record.calls
        if record.forward_of(call) is not None
    }
    assert forward["SinBackward0"] == "aten::sin"
    assert forward["CosBackward0"] == "aten::cos"


def test_a_thread_that_creates_no_nodes_is_not_a_maker():
    x = torch.ones(3, requires_grad=True)
    recorder = OpRecorder({}, Annotations())
    with recorder:
        x.sin()
        makers = dict(recorder.record.makers)
        on_another_thread(lambda: (begin(recorder), begin(recorder)))
        # And the count of this thread goes on where it was.
        begin(recorder)
    assert recorder.record.makers == makers
    assert -1 not in makers
    assert recorder.record.maker_of(None, None) is None


def test_the_node_that_is_numbered_zero_has_a_maker():
    recorder = OpRecorder({}, Annotations())
    numbers = []

    def run():
        x = torch.ones(3, requires_grad=True)
        with recorder:
            y = x.sin()
        numbers.append(y.grad_fn._sequence_nr())

    on_another_thread(run)
    assert numbers == [0]
    assert recorder.record.maker_of(0, "SinBackward0").name == "aten::sin"


def test_a_number_that_two_threads_gave_says_nothing():
    recorder = OpRecorder({}, Annotations())
    x = torch.ones(3, requires_grad=True)

    def checkpoint_in_backward():
        begin(recorder)
        x.sin()
        begin(recorder)

    def run():
        with recorder:
            x.sin()
            on_another_thread(checkpoint_in_backward)

    on_another_thread(run)
    assert recorder.record.makers == {0: None}
    assert recorder.record.maker_of(0, "SinBackward0") is None


@pytest.fixture(params=["key", "mode"])
def either_way(request, monkeypatch):
    """On the dispatch key, and with the mode that takes its place."""
    monkeypatch.setattr(op_key, "is_supported", lambda: request.param == "key")


@pytest.mark.usefixtures("either_way")
def test_a_recorder_sees_forward_and_backward_either_way():
    layer = torch.nn.Linear(4, 4)
    x = torch.ones(2, 4)
    recorder = OpRecorder({"layer": layer}, Annotations())
    with recorder:
        layer(x).sin().sum().backward()
    calls = {call.name: call for call in recorder.record.calls}
    assert calls["aten::addmm"].module == ("layer", "Linear")
    assert calls["aten::addmm"].chain[0][0].co_name == (
        "test_a_recorder_sees_forward_and_backward_either_way"
    )
    cosine = calls["aten::cos"]
    assert cosine.autograd_node == "SinBackward0"
    assert recorder.record.forward_of(cosine) is calls["aten::sin"]
    product = calls["aten::mm"]
    assert product.autograd_node == "AddmmBackward0"
    assert recorder.record.forward_of(product) is calls["aten::addmm"]
    # The innermost frame is where the launch comes from, not where it was observed.
    assert calls["aten::addmm"].innermost[0].co_filename.endswith("torch/nn/modules/linear.py")


@pytest.mark.usefixtures("either_way")
def test_ops_in_place_and_on_views_made_their_nodes_either_way():
    x = torch.rand(4, 4, requires_grad=True)
    recorder = OpRecorder({}, Annotations())
    with recorder:
        y = torch.nn.functional.silu(x * 2, inplace=True)
        y = y.cos()
        y[:2].mul_(3)
        y[1:].tanh_()
        z = torch.zeros_like(y)
        z[:, 1:] = y[:, 1:]
        z.sin().sum().backward()
    record = recorder.record
    forward = {
        (call.name, call.autograd_node, maker.name)
        for call in record.calls
        if (maker := record.forward_of(call)) is not None
    }
    of_views = "torch::autograd::CopySlices"
    assert ("aten::silu_backward", "SiluBackward0", "aten::silu_") in forward
    assert ("aten::tanh_backward", of_views, "aten::tanh_") in forward
    assert {maker for _, node, maker in forward if node == of_views} == {
        "aten::mul_.Tensor",
        "aten::tanh_",
        "aten::copy_",
    }
    backward = [call for call in record.calls if call.autograd_node is not None]
    known = [call for call in backward if record.forward_of(call) is not None]
    assert {call.name for call in backward if call not in known} <= {"aten::detach"}


@pytest.mark.usefixtures("either_way")
def test_the_first_op_of_a_custom_function_makes_its_node_either_way():
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.cos()

    x = torch.ones(2, requires_grad=True)
    recorder = OpRecorder({}, Annotations())
    with recorder:
        Custom.apply(x).sum().backward()
    calls = {call.name: call for call in recorder.record.calls}
    assert recorder.record.forward_of(calls["aten::cos"]) is calls["aten::exp"]


@pytest.mark.usefixtures("either_way")
def test_a_recorder_inside_another_one_sees_the_same_ops():
    outer = OpRecorder({}, Annotations())
    inner = OpRecorder({}, Annotations())
    with outer, inner:
        torch.ones(2).sin()
    names = [call.name for call in inner.record.calls]
    assert names == ["aten::ones", "aten::sin"] == [call.name for call in outer.record.calls]


@pytest.mark.usefixtures("either_way")
def test_launches_belong_to_the_innermost_op_either_way():
    count = iter(range(100))
    recorder = OpRecorder({}, Annotations(), lambda: next(count))
    with recorder:
        torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))
    assert [call.launches for call in recorder.record.calls if "mm" in call.name] == [(6, 7)]


COMPILES_FIRST = """
import torch
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpRecorder, RootedModuleNames
from cgtool.torch_compat.private import dynamo_is_loaded

assert not dynamo_is_loaded()
recorder = OpRecorder({}, Annotations())
x = torch.ones(4, requires_grad=True)
with recorder:
    torch.compile(lambda x: (x * 2).sin())(x).sum().backward()
assert "aten::sin" in [call.name for call in recorder.record.calls]
assert "aten::cos" in [call.name for call in recorder.record.calls]
print(x.grad.tolist())

graphs = []
compiled = torch.compile(lambda x: x.tan(), backend=lambda graph, _: graphs.append(graph) or graph)
compiled(x)
with recorder:
    compiled(x).sum().backward()
assert "aten::tan" in [call.name for call in recorder.record.calls]
assert len(graphs) == 1  # recording compiles nothing for itself
"""


def test_compiled_code_that_is_recorded_runs_eagerly_and_stays_as_it_is():
    process = subprocess.run(
        [sys.executable, "-c", COMPILES_FIRST], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    x = torch.ones(4, requires_grad=True)
    (x * 2).sin().sum().backward()
    assert process.stdout.strip() == str(x.grad.tolist())


def test_a_recorded_iteration_compiles_what_a_plain_run_compiles():
    def losses(recorder):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4))
        compiled, x = torch.compile(model, backend="aot_eager"), torch.randn(2, 4)
        found = []
        for iteration in range(4):
            with recorder if iteration == 2 else contextlib.nullcontext():
                loss = compiled(x).square().mean()
                loss.backward()
                found.append(loss.item())
        return found, {name: dict(counts) for name, counts in counters.items()}

    recorder = OpRecorder({}, Annotations())
    assert losses(recorder) == losses(contextlib.nullcontext())
    assert "aten::addmm" in [call.name for call in recorder.record.calls]


def test_naming_a_model_does_not_keep_it_alive():
    names = RootedModuleNames()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert names.running(model, None) == ("", "Sequential")
    assert names.running(model[0], ("", "Sequential")) == ("0", "Linear")
    weak = weakref.ref(model)
    del model
    assert weak() is None


def test_record_stream_writes_nothing() -> None:
    """Its schema says that it does; a GPU shows the op, the simulated device has none."""
    func = torch.ops.aten.record_stream.default
    assert not [*written_by(func, (torch.ones(2), None), {})]
