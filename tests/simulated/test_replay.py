"""The simulated device keeps the semantics of a CUDA graph."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.devices.simulated.session import prepare
from cgtool.model.failure import CgtoolError
from cgtool.model.options import CaptureOptions
from cgtool.program.load import load
from cgtool.program.phases import call, differentiable, flatten_outputs, grads
from cgtool.program.workload import Workload, WorkloadPart

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
DETERMINISTIC = ("mlp", "convnet", "decoder_step", "gan", "mixed_precision", "two_streams")


def quiet(_text: str) -> None:
    """No progress."""


def prepared(device, function, *args, kind="callable", **options):
    workload = Workload("test", kind, (WorkloadPart("test", function, args),))
    return prepare(device, workload, CaptureOptions(**options), quiet)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_replay_equals_eager_to_the_last_bit(name):
    with SimulatedDevice("test").active() as device:
        workload = load(f"{SAMPLES / name}.py:build", device="cuda")
        session = prepare(device, workload, CaptureOptions(), quiet)
        for captured in session.graphs:
            captured.graph.replay()
        replayed = [t.clone() for named in session.outputs.values() for _, t in named]
        gradients = [g.clone() for gradient in session.gradients.values() for g in gradient]
        outputs, expected = [], []
        for part in workload.parts:
            outputs += [tensor for _, tensor in flatten_outputs(call(part))]
        for index, part in reversed(list(enumerate(workload.parts))):
            if index in session.backwards:
                backward = differentiable(part, flatten_outputs(call(part)))
                expected += grads(backward, False)
    assert len(replayed) == len(outputs) and len(gradients) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(replayed, outputs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_a_training_step_replays_as_eager_steps_do():
    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4).to("cuda")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
        x = torch.ones(2, 4, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss

        return model, step

    with SimulatedDevice("test").active() as device:
        model, step = make()
        session = prepared(device, step, kind="step")
        before = [p.clone() for p in model.parameters()]
        session.graphs[0].graph.replay()
        session.graphs[0].graph.replay()
        after = [p.clone() for p in model.parameters()]
        eager, again = make()
        for parameter, value in zip(eager.parameters(), before, strict=True):
            assert parameter.shape == value.shape
        for _ in range(3 + 1 + 2):
            again()
    assert all(torch.equal(a, b) for a, b in zip(after, eager.parameters(), strict=True))


def test_an_output_is_overwritten_by_the_next_replay_and_inputs_are_read_again():
    with SimulatedDevice("test").active() as device:
        x = torch.ones(3, device="cuda")
        session = prepared(device, lambda x: x * 2, x)
        output = session.outputs[0][0][1]
        x.fill_(5)
        session.graphs[0].graph.replay()
    assert output.tolist() == [10, 10, 10]


def test_a_python_number_is_frozen():
    state = {"scale": 1.0}

    def function(x):
        state["scale"] += 1
        return x * state["scale"]

    with SimulatedDevice("test").active() as device:
        session = prepared(device, function, torch.ones(2, device="cuda"))
        output = session.outputs[0][0][1]
        first = output.clone()
        state["scale"] = 100.0
        session.graphs[0].graph.replay()
    assert torch.equal(output, first)


def test_dropout_differs_between_replays():
    with SimulatedDevice("test").active() as device:
        session = prepared(
            device, lambda x: torch.nn.functional.dropout(x, 0.5), torch.ones(4096, device="cuda")
        )
        output = session.outputs[0][0][1]
        session.graphs[0].graph.replay()
        first = output.clone()
        session.graphs[0].graph.replay()
    assert not torch.equal(first, output)


REFUSED = {
    "item": lambda x: x / x.sum().item(),
    "truth": lambda x: x if x.sum() > 0 else -x,
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "tolist": lambda x: x * x.tolist()[0],
    "cpu": lambda x: x * x.sum().cpu(),
    "synchronize": lambda x: (torch.cuda.synchronize(), x + 1)[1],
    "tensor": lambda x: x + torch.tensor([1.0, 1.0, 1.0], device="cuda"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_wait_for_the_device_is_refused(name):
    function = REFUSED[name]
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        prepared(device, function, torch.ones(3, device="cuda"))
    failure = caught.value.failure
    assert failure.exit_code == 4
    assert "900" in (failure.why or "")
    assert failure.frames[0].line == function.__code__.co_firstlineno


def test_fork_and_join_are_edges():
    with SimulatedDevice("test").active() as device:
        side = torch.cuda.Stream()

        def function(x):
            main = torch.cuda.current_stream()
            y = x + 1
            side.wait_stream(main)
            with torch.cuda.stream(side):
                right = y * 2
            left = y * 3
            main.wait_stream(side)
            return left + right

        session = prepared(device, function, torch.ones(3, device="cuda"))
    nodes = session.graphs[0].graph.nodes
    assert [node.dependencies for node in nodes] == [(), (0,), (0,), (1, 2)]


def test_the_session_gives_torch_back_as_it_was():
    names = ("Stream", "Event", "synchronize", "is_available", "current_stream", "manual_seed")
    before = {name: getattr(torch.cuda, name) for name in names}
    kept = (torch.Generator, torch.autocast, torch.nn.Module.cuda)
    with SimulatedDevice("test").active():
        assert torch.cuda.is_available()
        assert torch.zeros(3, device="cuda").is_cuda
    assert {name: getattr(torch.cuda, name) for name in names} == before
    assert (torch.Generator, torch.autocast, torch.nn.Module.cuda) == kept


def test_a_view_without_elements_is_where_its_base_is():
    with SimulatedDevice("test").active():
        x = torch.ones(3, device="cuda")
        assert [x[start:start].device.type for start in (0, 2, 3)] == ["cuda"] * 3
        assert torch.ones(3)[:0].device.type == "cpu"


def test_a_sparse_result_without_elements_is_on_the_device():
    with SimulatedDevice("test").active():
        empty = torch.zeros(2, 2, device="cuda").to_sparse()
        results = empty.coalesce(), empty * 2, empty.t(), empty.to_sparse_csr()
        assert [result.device.type for result in results] == ["cuda"] * 4


def test_another_memory_format_is_on_the_same_device():
    with SimulatedDevice("test").active():
        x = torch.ones(1, 2, 3, 3, device="cuda")
        model = torch.nn.Conv2d(2, 2, 1, device="cuda").to(memory_format=torch.channels_last)
        moved = x.to(memory_format=torch.channels_last), x.to(copy=True), model.weight
        assert [tensor.device.type for tensor in moved] == ["cuda"] * 3
        assert x.to(0).device.type == "cuda"
        assert x.to(device="cpu", memory_format=torch.channels_last).device.type == "cpu"
        assert torch.ones(3).to(copy=True).device.type == "cpu"


def test_compiled_code_runs_unfused():
    with SimulatedDevice("test").active() as device:
        x = torch.ones(3, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        session = prepared(device, torch.compile(lambda x: x.sin().cos()), x)
    assert [node.call.name for node in session.graphs[0].graph.nodes] == [
        "aten::sin",
        "aten::cos",
    ]


@pytest.mark.parametrize("preserve", [True, False])
def test_checkpointing_drops_in_backward_what_it_dropped_in_forward(preserve):
    def block(x):
        return torch.nn.functional.dropout(x * x, 0.5)

    def function(x):
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve)

    with SimulatedDevice("test").active() as device:
        x = torch.ones(4096, device="cuda", requires_grad=True)
        session = prepared(device, function, x)
        masks = []
        for _ in range(2):
            for captured in session.graphs:
                captured.graph.replay()
            masks.append(session.outputs[0][0][1].detach().clone())
            same = torch.equal(session.gradients[0][0] != 0, masks[-1] != 0)
            assert same == preserve
    assert not torch.equal(*masks)


class Wrapped(torch.Tensor):
    """A weight that is made of another tensor, as quantized ones are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = pytree.tree_map_only(Wrapped, lambda tensor: tensor.inner, args)
        result = func(*args, **(kwargs or {}))
        return Wrapped(result) if func is torch.ops.aten.detach.default else result


def packed(x):
    lengths = torch.tensor([3, 2])
    rows = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    assert int(rows.batch_sizes[0]) == 2 and not rows.batch_sizes.is_cuda
    return torch.nn.utils.rnn.pad_packed_sequence(rows, batch_first=True)[0] * 2


def wrapped():
    weight = torch.nn.Parameter(Wrapped(torch.randn(4, 4, device="cuda")), requires_grad=False)
    return lambda x: x @ weight


def compressed():
    rows, columns = torch.arange(4, device="cuda"), torch.arange(3, device="cuda")

    def run(x):
        values = x.flatten()[:3]
        return torch.sparse_csr_tensor(rows, columns, values, (3, 3)) @ x.flatten()[:3]

    return run


def jagged():
    offsets = torch.tensor([0, 1, 2], device="cuda")
    body = torch.nn.Linear(4, 4, device="cuda")

    def run(x):
        nested = torch.nested.nested_tensor_from_jagged(x.flatten(0, 1)[:2], offsets)
        return body(nested).values()

    return run


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", [lambda: packed, wrapped, compressed, jagged])
def test_tensors_that_are_made_of_others_replay_as_eager(make):
    with SimulatedDevice("test").active() as device:
        function = make()
        x = torch.randn(2, 3, 4, device="cuda", requires_grad=make is jagged)
        session = prepared(device, function, x)
        with torch.no_grad():
            x.copy_(torch.randn(2, 3, 4, device="cuda"))
        for captured in session.graphs:
            captured.graph.replay()
        assert torch.equal(session.outputs[0][0][1], function(x))


def test_histograms_of_integers_are_counted_as_on_a_gpu():
    with SimulatedDevice("test").active() as device:
        x = torch.tensor([0, 1, 1, 3], dtype=torch.int32, device="cuda")
        session = prepared(device, lambda x: torch.histc(x, bins=4, min=0, max=3), x)
    (_, histogram) = session.outputs[0][0]
    assert histogram.dtype == torch.int32 and histogram.tolist() == [1, 2, 0, 1]


def test_annotations_may_name_the_classes_of_torch_cuda():
    with SimulatedDevice("test").active():
        assert torch.cuda.CUDAGraph | None and torch.cuda.device | None
        with torch.cuda.device(0):
            pass


def _in(storage, device="cuda"):
    return torch.empty(0, device=device).set_(storage)


COPIES = {
    "deepcopy": copy.deepcopy,
    "deepcopy of a parameter": lambda x: copy.deepcopy(torch.nn.Parameter(x)).detach(),
    "clone of a storage": lambda x: _in(x.untyped_storage().clone()),
    "clone of a typed storage": lambda x: _in(x.storage().clone().untyped()),
    "copy of a storage": lambda x: _in(copy.copy(x.untyped_storage())),
    "copied to a new storage": lambda x: _in(
        torch.UntypedStorage(12, device=x.device).copy_(x.untyped_storage())
    ),
    "slice of a storage": lambda x: _in(x.untyped_storage()[:12]) * 1,
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_storage_is_in_the_graph(name):
    def function():
        copied = COPIES[name](state)
        places.append((copied.device.type, copied.untyped_storage().device.type))
        return copied

    with SimulatedDevice("test").active() as device:
        places: list[tuple[str, str]] = []
        state = torch.ones(3, device="cuda")
        session = prepared(device, function, kind="step")
        state.fill_(2)
        session.graphs[0].graph.replay()
        assert session.results[0].tolist() == [2, 2, 2]
    assert set(places) == {("cuda", "cuda")}
