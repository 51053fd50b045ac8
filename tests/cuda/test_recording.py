"""What ``cgtool run`` notes of the ops of a capture, against the plain op recorder. No GPU: the
stream's position is counted by hand."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cgtool.devices.cuda import recording
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import Chains, frames_of, key_of
from cgtool.observe.generated import Source
from cgtool.observe.ops import OpRecorder
from cgtool.observe.origins import OriginTable
from cgtool.torch_compat import op_key
from cgtool.torch_compat.patches import Patches


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        with contextlib.suppress(ValueError):
            Refuses()(x)
        hidden = self.up(x).view(2, 2, 4).transpose(0, 1)
        hidden = hidden.reshape(2, 8).relu()
        return x + self.down(hidden)


class Refuses(nn.Module):
    def forward(self, x):
        x.neg()
        raise ValueError


torch.manual_seed(0)
MODEL = nn.Sequential(Block(), Block())
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
X = torch.randn(2, 4)


def step():
    loss = checkpoint(MODEL, X, use_reentrant=False).square().mean()
    loss.backward()
    OPTIMIZER.step()
    OPTIMIZER.zero_grad(set_to_none=False)


@pytest.fixture
def recorder(monkeypatch):
    """Ops that are watched launch one node each."""
    launched = []

    def query():
        def position(_stream):
            launched.append(0)
            return len(launched) // 2 or ()

        return position

    monkeypatch.setattr(recording, "capture_query", query)
    monkeypatch.setattr(recording, "current_raw_stream", lambda _device: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return recording._Recorder(Chains())


@contextlib.contextmanager
def watched_by(recorder):
    with recorder.modules, op_key.watch(recorder.observe):
        yield


def calls_of(record):
    return [
        (call.name, frames_of(call.chain), call.module, call.autograd_node) for call in record.calls
    ]


def test_the_calls_are_those_of_the_plain_recorder(recorder):
    step()
    plain = OpRecorder({"": MODEL}, Annotations())
    for entered in (plain, watched_by(recorder)):
        with entered:
            step()
    assert calls_of(recorder.record) == calls_of(plain.record)
    chains = {id(call.chain): call.chain for call in recorder.record.calls}
    assert len(chains) == len({tuple(map(key_of, chain)) for chain in chains.values()})


def test_each_call_owns_the_nodes_between_two_positions(recorder):
    with watched_by(recorder):
        MODEL(X)
    counts = recorder.positions.counts(range(1, 1000))
    ranges = {
        call.name: tuple(counts[position] for position in call.launches)
        for call in recorder.record.calls
    }
    assert [end - start for start, end in ranges.values()] == [
        0 if name in recording._LAUNCH_NOTHING else 1 for name in ranges
    ]


def test_views_lead_from_backward_to_forward(recorder):
    with watched_by(recorder):
        step()
    record = recorder.record
    names = {
        call.autograd_node: forward and forward.name
        for call in record.calls
        for forward in [record.forward_of(call)]
    }
    assert names["AddmmBackward0"] == "aten::addmm"
    assert names["ViewBackward0"] == "aten::view"
    assert names["TransposeBackward0"] == "aten::transpose.int"
    assert names["TBackward0"] == "aten::t"


def test_backwards_of_two_captures_lead_to_their_own_forwards(recorder):
    """They call the same ops, in the same order and from the same line."""
    x = X.clone().requires_grad_()
    functions = [
        lambda x: x.sin(),
        lambda x: x.sin(),
    ]
    table = OriginTable()
    lines = []
    for function, each in zip(functions, (recorder, recording._Recorder(Chains())), strict=True):
        with watched_by(each):
            function(x).sum().backward()
        [call] = [call for call in each.record.calls if call.name == "aten::cos"]
        origin = table.add(call, each.record)
        forward = table.origins[table.origins[origin].forward]
        lines.append(table.frames[forward.frames[0]].line)
    assert lines == [function.__code__.co_firstlineno for function in functions]


def test_chains_of_single_launches_are_not_kept():
    """There are as many as launches of Triton kernels in all captures of a process."""
    chain = tuple((function.__code__, 0) for function in (step, watched_by))
    before = sys.getrefcount(chain)
    table = OriginTable()
    table.add_generated(None, Source(("aten.add",)), chain)
    assert sys.getrefcount(chain) == before


def test_what_was_added_to_the_tables_since():
    table = OriginTable()

    def add(op):
        table.add_site(
            op=op, chain=((add.__code__, 0),), module=None, annotations=(), autograd_node=None
        )

    add("aten::add")
    assert table.after(0, 0) == (table.frames, table.origins)
    add("aten::mul")
    assert table.after(1, 1) == ((), table.origins[1:])
    assert table.after(1, 2) == ((), ())


def test_after_a_fault_the_next_capture_is_watched(monkeypatch):
    def broken(_chains):
        raise OSError("no driver")

    monkeypatch.setattr(recording, "_Recorder", broken)
    monkeypatch.setattr(recording.op_watch, "load", lambda: None)
    monkeypatch.setattr(recording, "current_raw_stream", lambda _device: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(OSError, match="no driver"):
        recording.Captures(None, Patches()).watch(OriginTable(), (), compiled=False).begin(None)
    assert recording._watched.acquire(blocking=False)
    recording._watched.release()
