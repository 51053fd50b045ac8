"""What op calls read and wrote, compared with what is known of each op by hand."""

from __future__ import annotations

import gc
import weakref
from itertools import count

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.model.capture import Call
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpRecorder, numbered
from cgtool.torch_compat import op_key


def record(function, *, log=None):
    """The op calls of ``function``, each as if it had launched something."""
    recorder = OpRecorder({}, Annotations(), count().__next__, log or AccessLog())
    with recorder:
        function()
    return recorder.record.calls


def access(function):
    """The record of the last op that ``function`` runs."""
    return record(function)[-1].access


X = torch.ones(8, 16)
W = torch.ones(16, 4)
TABLE = torch.ones(100, 16)
ROWS = torch.tensor([3, 1, 4])
ROW_BYTES = 3 * 16 * 4
INDEX_BYTES = 3 * 8


@pytest.mark.parametrize(
    ("function", "read", "written", "flops"),
    [
        (lambda: torch.mm(X, W), 512 + 256, 128, 2 * 8 * 16 * 4),
        (lambda: torch.mm(X.t(), X), 512, 1024, 2 * 16 * 8 * 16),
        (lambda: X * X, 512, 512, None),
        (lambda: X + X[0], 512 + 64, 512, None),
        (lambda: X[0].expand(8, 16) * 2, 64, 512, None),
        (lambda: X[:, 0] + 1, 32, 32, None),
        (lambda: X.unfold(1, 4, 1).clone(), 512, 8 * 13 * 4 * 4, None),
        (lambda: torch.cat([W, W[:2]]), 256 + 32, 288, None),
        (lambda: X.clone().add_(1), 512, 512, None),
        (lambda: torch.relu_(X.clone()), 512, 512, None),
        (lambda: X.clone().zero_(), 0, 512, None),
        (lambda: torch.empty(8, 16).copy_(X), 512, 512, None),
        (lambda: torch.add(X, 1, out=torch.empty(8, 16)), 512, 512, None),
        (lambda: torch.mm(X, W, out=torch.empty(8, 4)), 512 + 256, 128, 2 * 8 * 16 * 4),
        (lambda: torch.zeros_like(X), 0, 512, None),
        (lambda: X.new_full((4,), 3.0), 0, 16, None),
        (lambda: F.embedding(ROWS, TABLE), ROW_BYTES + INDEX_BYTES, ROW_BYTES, None),
        (lambda: TABLE[ROWS], ROW_BYTES + INDEX_BYTES, ROW_BYTES, None),
        (lambda: TABLE.index_select(1, ROWS), 1200 + INDEX_BYTES, 1200, None),
        (lambda: X.gather(1, ROWS[None]), 12 + INDEX_BYTES, 12, None),
        (
            lambda: TABLE.clone().index_copy_(0, ROWS, X[:3]),
            2 * ROW_BYTES + INDEX_BYTES,
            ROW_BYTES,
            None,
        ),
        (
            lambda: TABLE.clone().index_put_((ROWS,), X[:3]),
            2 * ROW_BYTES + INDEX_BYTES,
            ROW_BYTES,
            None,
        ),
        (lambda: F.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)), 768 + 432, 576, 7776),
        (lambda: torch._foreach_add_([X.clone(), W.clone()], 1.0), 768, 768, None),
        (lambda: torch.empty(0, 4) + 1, 0, 0, None),
    ],
)
def test_bytes_and_flops(function, read, written, flops):
    recorded = access(function)
    assert (recorded.read_bytes, recorded.written_bytes, recorded.flops) == (read, written, flops)


def test_storages_of_a_chain():
    def chain():
        y = torch.mm(X, W)
        y.add_(1)
        F.softmax(y.view(4, 8).t() * 3, 0)

    calls = {call.name: call.access for call in record(chain)}
    x, w = calls["aten::mm"].reads
    (y,) = calls["aten::mm"].writes
    assert len({x, w, y}) == 3
    assert calls["aten::add_.Tensor"].reads == calls["aten::add_.Tensor"].writes == (y,)
    assert calls["aten::view"].writes == calls["aten::t"].writes == ()
    assert calls["aten::mul.Tensor"].reads == (y,)
    assert calls["aten::_softmax"].reads == calls["aten::mul.Tensor"].writes


def test_an_output_that_is_an_input_too_is_read():
    x = torch.ones(4)
    recorded = access(lambda: torch.add(x, 1, out=x))
    assert recorded.reads == recorded.writes == (0,)
    assert (recorded.read_bytes, recorded.written_bytes) == (16, 16)


def test_forward_and_backward_share_storages():
    x = torch.ones(8, 16, requires_grad=True)
    calls = record(lambda: torch.mm(x.exp(), W).sum().backward())
    by_name = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call.access)
    forward, *backward = by_name["aten::mm"]
    # exp's gradient is its own result, which the forward mm read.
    (exponential,) = by_name["aten::exp"][0].writes
    assert exponential in forward.reads
    assert any(exponential in recorded.reads for recorded in by_name["aten::mul.Tensor"])
    assert forward.reads[1] in backward[0].reads


def test_reused_memory_is_another_storage():
    storages = []

    def again():
        for _ in range(100):
            # Freed at once, so that the next storage would take its place.
            _ = X * 2
            del _

    for call in record(again):
        if call.name == "aten::mul.Tensor":
            storages += call.access.writes
    assert len(set(storages)) == len(storages) == 100


def test_nothing_is_kept_alive():
    log, alive = AccessLog(), []

    def iteration():
        y = torch.mm(X, W)
        alive.append(weakref.ref(y))
        alive.append(StorageWeakRef(y.untyped_storage()))

    calls = record(iteration, log=log)
    gc.collect()
    assert calls[-1].access is not None
    tensor, storage = alive
    assert tensor() is None
    assert storage.expired()


def test_random_ops_and_dropout():
    calls = record(lambda: F.dropout(X, 0.5))
    random = next(call.access for call in calls if call.name.startswith("aten::bernoulli_"))
    assert (random.reads, random.read_bytes, random.written_bytes) == ((), 0, 512)


def test_attention_forward_and_backward():
    with SimulatedDevice("test").active():
        q = torch.ones(1, 2, 8, 4, requires_grad=True, device="cuda")
        calls = record(lambda: F.scaled_dot_product_attention(q, q, q).sum().backward())
    flops = [call.access.flops for call in calls if "attention" in call.name]
    # Two matmuls of 2 heads, 8 x 4 x 8; five in backward.
    assert flops == [2 * 2 * 2 * 8 * 4 * 8, 5 * 2 * 2 * 8 * 4 * 8]


def test_convolution_backward_has_flops():
    x, w = torch.ones(1, 3, 8, 8, requires_grad=True), torch.ones(4, 3, 3, 3, requires_grad=True)
    calls = record(lambda: F.conv2d(x, w).sum().backward())
    forward, backward = (call.access.flops for call in calls if "convolution" in call.name)
    assert backward == 2 * forward


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda: F.linear(X, W.t(), torch.ones(4)), 2 * 8 * 16 * 4),
        (lambda: torch.matmul(X.expand(5, 8, 16), W), 5 * 2 * 8 * 16 * 4),
        (lambda: F.conv1d(torch.ones(2, 3, 10), torch.ones(6, 3, 3)), 2 * 2 * 8 * 3 * 6 * 3),
    ],
)
@pytest.mark.parametrize("key", [True, False], ids=["key", "mode"])
def test_flops_of_composite_ops_in_inference_mode(function, flops, key, monkeypatch):
    monkeypatch.setattr(op_key, "is_supported", lambda: key)
    with torch.inference_mode():
        assert sum(call.access.flops or 0 for call in record(function)) == flops


def test_flops_of_whole_attention(monkeypatch):
    monkeypatch.setattr(op_key, "is_supported", lambda: False)
    q = torch.ones(1, 2, 8, 4)
    with torch.inference_mode():
        calls = record(lambda: F.scaled_dot_product_attention(q, q, q))
    assert [call.access.flops for call in calls] == [2048]


def test_batch_norm_writes_its_statistics():
    mean, var = torch.zeros(3), torch.ones(3)
    recorded = access(lambda: F.batch_norm(torch.ones(4, 3), mean, var, training=True))
    assert set(recorded.reads) & set(recorded.writes)
    recorded = access(lambda: F.batch_norm(torch.ones(4, 3), mean, var, training=False))
    assert not set(recorded.reads) & set(recorded.writes)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda: torch.eye(4).to_sparse(), 4 * 4 + 2 * 4 * 8),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]), 72),
        (
            lambda: torch.nested.nested_tensor(
                [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged
            ),
            72,
        ),
    ],
)
def test_tensors_that_are_made_of_others(make, read):
    given = make()
    recorded = access(lambda: given * 2)
    assert recorded.read_bytes == read
    assert recorded.writes


def test_the_type_is_that_of_the_first_floating_point_result():
    assert access(lambda: X.max(dim=1)).dtype == "float32"
    assert access(lambda: X.argmax()).dtype is None
    assert access(lambda: X.to(torch.bfloat16)).dtype == "bfloat16"
    assert access(lambda: torch._foreach_mul_([X.clone()], 2.0)).dtype == "float32"


class Strange(torch.Tensor):
    """Answers no question about its memory."""

    @property
    def layout(self):
        raise ValueError("no layout")

    __torch_function__ = torch._C._disabled_torch_function_impl


def test_what_cannot_be_read_is_unknown_and_fails_nothing():
    strange = torch.ones(4).as_subclass(Strange)
    call = record(lambda: torch.Tensor.add(strange, 1))[-1]
    assert call.access == Call()


def test_a_formula_that_raises_counts_nothing(monkeypatch):
    from torch.utils import flop_counter

    def broken(*_args, **_kwargs):
        raise RuntimeError("no")

    packet = torch.ops.aten.cumsum
    monkeypatch.setitem(flop_counter.flop_registry, packet, flop_counter.shape_wrapper(broken))
    assert access(lambda: X.cumsum(0)).flops is None


def test_formulas_that_would_read_offsets_from_the_device_are_not_called(monkeypatch):
    from torch.utils import flop_counter

    calls = []
    monkeypatch.setitem(
        flop_counter.flop_registry,
        torch.ops.aten.cumsum,
        lambda *arguments, **_: calls.append(arguments),
    )
    assert access(lambda: X.cumsum(0)).flops is None
    assert calls == []


def test_only_calls_that_launch_are_noted():
    recorder = OpRecorder({}, Annotations(), lambda: 0, AccessLog())
    with recorder:
        X * 2
    assert [call.access for call in recorder.record.calls] == [None]


def test_nodes_of_one_call_share_its_record():
    first, second = record(lambda: (X * 2, X * 3))
    calls, of_node = numbered([second, None, first, second])
    assert calls == (second.access, first.access)
    assert of_node == [0, None, 1, 0]
    first.access = None
    assert numbered([first]) == ((Call(),), [0])


def test_many_tensors_on_one_storage_count_each_part_once():
    flat = torch.ones(300)
    parts = [flat[3 * at : 3 * at + 3] for at in range(100)]
    recorded = access(lambda: torch._foreach_add(parts + parts[:7], 1.0))
    assert len(recorded.reads) == 1
    assert (recorded.read_bytes, recorded.written_bytes) == (1200, 1200 + 84)
    # At the same place of another storage.
    assert access(lambda: torch.ones(4) + torch.ones(4)).read_bytes == 32


def test_memory_from_before_that_was_freed_is_told_from_what_the_iteration_made():
    held = {"state": torch.ones(8), "table": torch.ones(8)}
    log = AccessLog()
    launched = count()

    def launches():
        is_empty = recorder.running.call.name.startswith("aten::empty")
        return 0 if is_empty else next(launched)

    def iteration():
        scaled = torch.empty(8).fill_(2.0) * held["table"]
        held["state"] = held["state"] * 0.5 + scaled.sum()

    recorder = OpRecorder({}, Annotations(), launches, log)
    with recorder:
        iteration()
    calls = [call for call in recorder.record.calls if call.access is not None]
    assert [call.name.partition(".")[0] for call in calls] == [
        *("aten::fill_", "aten::mul", "aten::mul", "aten::sum", "aten::add")
    ]
    assert [log.used_freed(call.access) for call in calls] == [False, False, True, False, False]
