"""What is looked up of the objects that the user's code names."""

from __future__ import annotations

import sys
import time

import torch

from cgtool.observe import host_values
from cgtool.observe.annotations import Annotations
from cgtool.observe.host_reads import HostReads
from cgtool.observe.host_values import value_of
from cgtool.observe.iteration import CallProfile, observe


class Meter:
    total = 0.0


def reads_of(meter):
    """What is watched of the local names of a function that uses an object."""

    def use():
        local = [meter][0]
        local.total  # noqa: B018 : the access is what is watched
        return sys._getframe()

    reads = HostReads()
    reads.add_locals(use())
    return [watched.use.text for watched in reads.watched]


def test_attributes_of_local_objects_are_watched():
    assert reads_of(Meter()) == ["local.total"]


def test_streams_and_events_are_not_referred_to():
    """A weak reference to an event of CUDA dangles after the event's death, in PyTorch 2.11."""

    class Timer(torch.Event):
        total = 0.0

    assert reads_of(Timer("cpu")) == []


def test_autograd_needs_no_other_thread():
    """On a GPU it would run hooks on a thread of its own, where nothing is watched."""
    x, seen = torch.ones(2, requires_grad=True), []
    x.register_hook(lambda _gradient: seen.append(torch._C._is_multithreading_enabled()))
    observe(lambda: x.sum().backward(), {}, Annotations(), HostReads(), set())
    assert seen == [False] and torch._C._is_multithreading_enabled()


def test_calls_in_the_kernel_of_a_custom_op_are_noted_and_those_of_the_recorder_are_not(
    monkeypatch,
):
    files = set()
    call = CallProfile.__call__

    def note(profile, frame, event, argument):
        files.add(frame.f_code.co_filename.rpartition("/cgtool/")[2])
        call(profile, frame, event, argument)

    @torch.library.custom_op("cgtool_test::stamped", mutates_args=())
    def stamped(x: torch.Tensor) -> torch.Tensor:
        return x * time.time()

    monkeypatch.setattr(CallProfile, "__call__", note)
    iteration = observe(lambda: stamped(torch.ones(2)) + 1, {}, Annotations(), HostReads(), set())
    assert "clock" in iteration.ran.drawn.values()
    assert [code.co_name for code in map(iteration.ran.codes.get, iteration.ran.hidden)] == [
        "stamped"
    ]
    assert __file__ in files and "observe/tensors.py" not in files


def test_a_module_that_takes_the_address_of_a_dead_one_is_another():
    for _ in range(1000):
        layer = torch.nn.ReLU()
        before, address = value_of(layer), id(layer)
        assert value_of(layer) == before
        del layer
        other = torch.nn.ReLU()
        if id(other) == address:
            break
    assert id(other) == address
    assert value_of(other) != before


class Counts:
    n = 0

    def step(self, reads):
        self.n + 1
        reads.add_frame(sys._getframe())


def test_an_object_that_takes_the_address_of_a_dead_one_is_read_too():
    for _ in range(1000):
        reads, counts = HostReads(), Counts()
        counts.step(reads)
        address = id(counts)
        del counts
        counts = Counts()
        if id(counts) == address:
            break
    assert id(counts) == address
    counts.step(reads)
    counts.n = 5
    assert 5 in [watched.look_up() for watched in reads.watched]


def test_a_tensor_that_takes_the_address_of_a_dead_one_is_another(monkeypatch):
    monkeypatch.setattr(host_values, "on_host", lambda _tensor: False)
    for _ in range(1000):
        tensor = torch.ones(100)
        before, address = value_of(tensor), tensor.data_ptr()
        assert value_of(tensor) == before == value_of(tensor.view(100))
        del tensor
        other = torch.ones(100)
        if other.data_ptr() == address:
            break
    assert other.data_ptr() == address
    assert value_of(other) != before


def test_the_order_of_items_does_not_compare_what_they_are():
    """A tensor with several elements has no truth value, nor has its comparison with another."""
    row = {"calls": 0}
    tables = [{torch.ones(2): row} for _ in range(2)]
    before, after = map(value_of, tables)
    assert before is not None and after is not None
    assert before.order != after.order
    rows = [row, {"calls": 0}]
    before = value_of(rows)
    row["calls"] += 1
    assert value_of(rows).order == before.order
    rows.reverse()
    assert value_of(rows).order != before.order
