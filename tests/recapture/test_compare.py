"""The first op that two runs do not share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.observe.annotations import Annotations
from cgtool.recapture.compare import Difference, first_difference
from cgtool.recapture.iteration import Iteration, observe

Step = Callable[[], Any]


@pytest.fixture(autouse=True)
def device() -> Iterator[SimulatedDevice]:
    simulated = SimulatedDevice("test")
    with simulated.active():
        yield simulated


def _iterations(step: Step, change: Step) -> tuple[Iteration, Iteration]:
    runs = []
    for before in (lambda: None, change):
        before()
        # Both from the same line: a chain of calls leads to each op.
        runs.append(observe(step, {}, Annotations(), set()))
    return runs[0], runs[1]


def _difference(step: Step, change: Step, **options: Any) -> Difference | None:
    return first_difference(*_iterations(step, change), **options)


def _rows(*shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (4,)), device="cuda")


class State:
    """What a step reads, and a change changes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def put(self, **values: Any) -> Step:
        return lambda: self.__dict__.update(values)


def test_the_same_ops_on_the_same_tensors() -> None:
    x, indexes = _rows(), [0, 2]

    def step() -> None:
        y = x * 2 + torch.rand(4, device="cuda")
        y[indexes].sum().add_(1)

    assert _difference(step, lambda: None) is None


def test_another_op() -> None:
    x, state = _rows(), State(late=False)

    def step() -> torch.Tensor:
        y = x + 1
        return y.exp() if state.late else y.log()

    found = _difference(step, state.put(late=True))
    assert found is not None and found.before is not None and found.after is not None
    assert (found.kind, found.at, found.is_added) == ("branch", 1, False)
    assert (found.before.name, found.after.name) == ("aten::log", "aten::exp")


def test_an_op_in_addition_and_one_that_is_left_out() -> None:
    x, state = _rows(), State(late=False)

    def step() -> torch.Tensor:
        y = x + 1
        if state.late:
            y = y * 2
        return y.log()

    added = _difference(step, state.put(late=True))
    assert added is not None and added.kind == "branch" and added.is_added
    left_out = _difference(step, state.put(late=False))
    assert left_out is not None and left_out.kind == "branch" and not left_out.is_added


def test_the_end_of_one_run() -> None:
    x, state = _rows(), State(count=1)

    def step() -> None:
        for _ in range(state.count):
            x.add_(1)

    longer = _difference(step, state.put(count=2))
    assert longer is not None and longer.before is None and longer.after is not None
    shorter = _difference(step, state.put(count=1))
    assert shorter is not None and shorter.after is None and not shorter.is_added


def test_another_number_of_tensors() -> None:
    state = State(parts=[_rows()])
    found = _difference(lambda: torch.cat(state.parts), lambda: state.parts.append(state.parts[0]))
    assert found is not None
    assert (found.kind, found.old, found.new) == ("list", 1, 2)


@pytest.mark.parametrize(
    ("step", "old", "new"),
    [
        (lambda x, n: x * n, 2, 3),
        (lambda x, n: x.narrow(0, n - 2, 1), 0, 1),
        (lambda x, n: torch.full_like(x, n / 2), 1.0, 1.5),
        (lambda x, n: x.sum(0, keepdim=n > 2), None, True),  # defaults are not passed
        (lambda x, n: torch.div(x, 2, rounding_mode=["floor", "trunc"][n - 2]), "floor", "trunc"),
    ],
)
def test_another_number(step: Any, old: Any, new: Any) -> None:
    x, state = _rows(), State(number=2)
    found = _difference(lambda: step(x, state.number), state.put(number=3))
    assert found is not None
    assert (found.kind, found.old, found.new) == ("number", old, new)


def test_other_values_of_a_tensor_on_the_host() -> None:
    x, factor = _rows(), torch.tensor(2.0)
    found = _difference(lambda: x * factor, lambda: factor.add_(1))
    assert found is not None
    assert (found.kind, found.old, found.new) == ("values", "2.0", "3.0")


def test_memory_of_the_host_that_the_device_fills() -> None:
    x, staged = _rows(), torch.zeros(4).pin_memory()

    def step() -> None:
        staged.copy_(x, non_blocking=True)
        (x + 1).copy_(staged, non_blocking=True)

    assert _difference(step, lambda: x.add_(1)) is None


def test_another_tensor() -> None:
    state = State(table=_rows(), spare=_rows())
    found = _difference(lambda: state.table + 1, state.put(table=state.spare))
    assert found is not None and found.kind == "tensor"
    addresses = (found.old.address, found.new.address)
    assert addresses == (found.old.memory.start, state.spare.data_ptr())
    assert found.place == (0, -1)


def test_another_part_of_a_tensor_and_another_shape() -> None:
    base = _rows(8)
    state = State(part=base[:4])
    moved = _difference(lambda: state.part + 1, state.put(part=base[4:]))
    assert moved is not None and moved.kind == "tensor" and moved.old.storage == moved.new.storage
    longer = _difference(lambda: state.part + 1, state.put(part=base[4:7]))
    assert longer is not None and longer.kind == "tensor"


def test_a_tensor_that_is_meant() -> None:
    state = State(table=_rows(), spare=_rows())
    first, second = _iterations(lambda: state.table + 1, state.put(table=state.spare))
    assert first_difference(first, second) is not None
    storage = first.in_order()[0].outside[0].storage
    meant = first_difference(first, second, is_meant=lambda tensor: tensor.storage == storage)
    assert meant is None


def test_ops_by_name_are_called_from_anywhere() -> None:
    x, state = _rows(), State(way=0)

    def step() -> None:
        if state.way:
            x.add_(1)
        else:
            x.add_(1)

    first, second = _iterations(step, state.put(way=1))
    assert first_difference(first, second) is not None
    assert first_difference(first, second, by_name=True) is None


def test_autograd_adds_in_place_where_it_can() -> None:
    weight = _rows().requires_grad_()

    def step() -> None:
        (weight * 2).sum().backward()

    first, second = _iterations(step, lambda: None)
    names = [{op.call.name for op in run.ops} for run in (first, second)]
    assert names[0] != names[1]  # the second one adds to the gradient of the first
    third, fourth = _iterations(step, lambda: None)
    assert first_difference(third, fourth, by_name=True) is None
    # Where another one holds the gradient, it adds out of place.
    for op in fourth.ops:
        op.call = replace(op.call, name=op.call.name.replace("add_.", "add."))
    assert first_difference(third, fourth, by_name=True) is None
    for op in fourth.ops:
        op.call = replace(op.call, autograd_node=None)
    assert first_difference(third, fourth, by_name=True) is not None


def test_ops_of_other_threads_run_in_any_order() -> None:
    x, y = _rows(), _rows(3)
    state = State(order=(lambda: x.mul(2), lambda: y.exp()))

    def step() -> None:
        for work in state.order:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    assert _difference(step, state.put(order=state.order[::-1])) is None
