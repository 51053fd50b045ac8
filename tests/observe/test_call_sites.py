"""Where optimizers are constructed and checkpointing is called."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from cgtool.observe import call_sites
from cgtool.program.boundary import own_fault


def _line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return next(first + number for number, line in enumerate(lines) if text in line)


def _make():
    return torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)


def _checkpointed(x):
    return checkpoint(torch.sin, x, use_reentrant=True)


def test_the_line_that_constructs_an_optimizer():
    unrecorded = _make()
    with call_sites.recorded():
        optimizer = _make()
    frame = call_sites.constructed_at(optimizer)[0]
    assert (frame.function, frame.line) == ("_make", _line_of(_make, "SGD("))
    assert call_sites.constructed_at(unrecorded) == ()


def test_the_line_that_checkpoints_is_known_while_recording():
    with call_sites.recorded():
        _checkpointed(torch.ones(2, requires_grad=True))
        frame = call_sites.checkpointed_at()[0]
        assert (frame.function, frame.line) == (
            "_checkpointed",
            _line_of(_checkpointed, "checkpoint("),
        )
    assert call_sites.checkpointed_at() == ()


def test_pytorch_is_as_before_and_its_errors_are_the_callers():
    before = torch.optim.Optimizer.__init__, CheckpointFunction.forward
    with call_sites.recorded(), pytest.raises(ValueError, match="empty parameter") as caught:
        torch.optim.SGD([], lr=0.1)
    assert not own_fault(caught.value)
    assert (torch.optim.Optimizer.__init__, CheckpointFunction.forward) == before
