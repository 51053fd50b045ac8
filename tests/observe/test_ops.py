"""The op record: which forward call made the autograd node that runs."""

from __future__ import annotations

import sys
import threading

import torch

from cgtool.observe.annotations import Annotations
from cgtool.observe.ops import OpRecorder


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


def test_a_thread_that_makes_no_nodes_is_no_maker():
    x = torch.ones(3, requires_grad=True)
    recorder = OpRecorder({}, Annotations())
    with recorder:
        x.sin()
        made = dict(recorder.record.makers)
        on_another_thread(lambda: (begin(recorder), begin(recorder)))
        # And the count of this thread goes on where it was.
        begin(recorder)
    assert recorder.record.makers == made
    assert -1 not in made
    assert recorder.record.maker_of(None) is None


def test_the_node_that_is_numbered_zero_has_a_maker():
    recorder = OpRecorder({}, Annotations())
    found = []

    def run():
        x = torch.ones(3, requires_grad=True)
        with recorder:
            y = x.sin()
        found.append(y.grad_fn._sequence_nr())

    on_another_thread(run)
    assert found == [0]
    assert recorder.record.maker_of(0).name == "aten::sin"


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
    assert recorder.record.maker_of(0) is None
