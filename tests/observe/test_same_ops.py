"""Recording changes nothing: PyTorch's profiler sees the ops of a plain run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.devices.simulated.memory import LifetimeRecorder
from cgtool.observe.access import AccessLog
from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpRecorder

WEIGHT = torch.ones(4, 4, requires_grad=True)
MODEL = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


def added_gradients() -> None:
    """Sums inside a backward pass, and over two of them."""
    for _ in range(2):
        x = WEIGHT * WEIGHT
        (x.exp() + x.sin() + x.cos()).sum().backward()


def shared_module() -> None:
    MODEL(MODEL(WEIGHT).relu()).square().sum().backward()


def views() -> None:
    x = WEIGHT.exp()
    first, second = x.view(16)[:8], x.t()[1]
    (first.sin().sum() + first.square().sum() + second.cos().sum()).backward()


def in_place() -> None:
    x = WEIGHT.clone()
    x[0].mul_(3)
    x.mul_(2)
    x[:2] += WEIGHT[:2]
    (x.cos().sum() + WEIGHT.sum()).backward()


def profiled(step: Callable[[], Any]) -> list[str]:
    """The ops that ran, without the numbers that the recorder reads of its own accord."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = sorted(profiler.events() or (), key=lambda event: event.time_range.start)
    reads = ("aten::item", "aten::_local_scalar_dense")
    names = [event.name for event in events if event.name.startswith("aten::")]
    return [name for name in names if name not in reads]


RECORDERS: dict[str, Callable[[], OpRecorder]] = {
    "accesses": lambda: OpRecorder({}, Annotations(), count().__next__, AccessLog()),
    "lifetimes": lambda: LifetimeRecorder({}, Annotations(), DeviceModel()),
}


@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("step", [added_gradients, shared_module, views, in_place])
def test_the_recorded_ops_are_those_of_a_plain_run(step: Callable[[], Any], recorder: str) -> None:
    step()
    plain = profiled(step)
    with RECORDERS[recorder]():
        step()
    with RECORDERS[recorder]() as recorded:
        watched = profiled(step)
    assert watched == plain
    recorded_names = [call.name.partition(".")[0] for call in recorded.record.calls]
    assert recorded_names.count("aten::add_") == plain.count("aten::add_") > 0
