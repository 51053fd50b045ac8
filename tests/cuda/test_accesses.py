"""The record of an op call reaches the nodes that it launched."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings.driver")

import torch

from cgtool.devices.cuda import provenance
from cgtool.devices.cuda.session import Recorded
from cgtool.devices.cuda.stamps import LaunchLog
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpRecorder, numbered
from cgtool.observe.origins import OriginTable
from tests.cuda.test_provenance import SESSION, called_back, captured, stamp_of

VIEWS = ("aten::t", "aten::view")


class Launching(OpRecorder):
    """Matmuls launch two kernels, views none, all other ops one."""

    def __init__(self, log):
        super().__init__({}, Annotations(), log.count, AccessLog())
        self.log = log
        log.recorder = self

    def execute(self, call, func, args, kwargs):
        for _ in range(0 if call.name in VIEWS else 2 if call.name == "aten::mm" else 1):
            self.log.launched()
        return func(*args, **kwargs)


def test_nodes_of_one_call_share_its_record_and_views_have_none():
    log = LaunchLog()
    recorder = Launching(log)
    x, w = torch.ones(4, 8), torch.ones(2, 8)
    with recorder:
        y = torch.mm(x, w.t())
        called_back(log)
        y.view(8).add_(1)
    assert [call.access is None for call in recorder.record.calls] == [True, False, True, False]
    launches = log.launches
    stamps = [stamp_of(launch, 10 + at, 100 + at) for at, launch in enumerate(launches)]
    capture = captured(stamps=stamps, recorded=Recorded(recorder.record, launches))
    handles = [10 + at for at in range(len(launches))]
    (joined,) = provenance.join(
        SimpleNamespace(graphs=[capture], streams=SESSION.streams), [handles], OriginTable()
    )
    calls, of_node = numbered(joined.calls)
    assert of_node == [0, 0, None, 1]
    mm, add = calls
    assert (mm.read_bytes, mm.written_bytes, mm.flops) == (128 + 64, 32, 2 * 4 * 8 * 2)
    assert add.reads == add.writes == mm.writes
