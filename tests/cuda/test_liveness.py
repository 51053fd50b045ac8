"""What ``--check-input-liveness`` refuses, and what it says it cannot know."""

from __future__ import annotations

import pytest

from cgtool.devices.cuda.memory import freed_block, require_live_inputs
from cgtool.model.capture import (
    Copy,
    Fill,
    Frame,
    Function,
    Graph,
    KernelLaunch,
    Memory,
    Node,
    Origin,
    PointerArgument,
    Tensor,
)
from cgtool.model.failure import CgtoolError
from tests.builders import capture

LIVE, DEAD = 0, 1
FRAME = Frame("/home/me/model.py", 12, "step")


def capture_of(*nodes, origins=(Origin("aten::copy_", frames=(0,)),), parameter_bytes=()):
    tensors = (Tensor("input 0", "input", 4096, 512), freed_block(8192, 512))
    return capture(
        [Graph("forward", "forward", nodes=nodes)],
        frames=(FRAME,),
        origins=origins,
        functions=(Function("kernel", parameter_bytes=parameter_bytes),),
        memory=Memory(tensors=tensors),
    )


def kernel(tensor=None, unread=None):
    pointers = () if tensor is None else (PointerArgument(0, 0, 8192, None, tensor),)
    return KernelLaunch(0, (1, 1, 1), (1, 1, 1), pointers=pointers, arguments_unread=unread)


DEADLY = {
    "kernel": {"type": "kernel", "kernel": kernel(DEAD)},
    "copied from": {"type": "memcpy", "copy": Copy("dtod", 512, source_tensor=DEAD)},
    "copied to": {"type": "memcpy", "copy": Copy("dtod", 512, destination_tensor=DEAD)},
    "filled": {"type": "memset", "fill": Fill(512, 0, destination_tensor=DEAD)},
}


@pytest.mark.parametrize("name", DEADLY)
def test_a_node_that_points_into_freed_memory_is_refused_at_its_line(name):
    with pytest.raises(CgtoolError) as raised:
        require_live_inputs(capture_of(Node(0, origin=0, **DEADLY[name])))
    assert raised.value.failure.exit_code == 4
    assert raised.value.failure.frames == (FRAME,)


@pytest.mark.parametrize("name", DEADLY)
def test_a_node_whose_line_is_not_known_is_refused_as_well(name):
    with pytest.raises(CgtoolError) as raised:
        require_live_inputs(capture_of(Node(0, **DEADLY[name])))
    assert raised.value.failure.exit_code == 4
    assert raised.value.failure.frames == ()


UNREAD = {
    "arguments": {"type": "kernel", "kernel": kernel(LIVE, unread="no cuFuncGetParamInfo")},
    "kernel": {"type": "kernel", "detail": "parameters not readable"},
    "copy": {"type": "memcpy", "detail": "parameters not readable"},
    "body": {"type": "conditional"},
    "new": {"type": "type_99"},
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_was_not_read_is_not_passed(name):
    with pytest.raises(CgtoolError) as raised:
        require_live_inputs(capture_of(Node(0, "empty"), Node(1, **UNREAD[name])))
    assert raised.value.failure.exit_code == 5
    assert "node 1 of forward" in raised.value.failure.message


def test_a_dead_input_is_worth_more_than_an_unread_one():
    with pytest.raises(CgtoolError) as raised:
        require_live_inputs(capture_of(Node(0, **UNREAD["arguments"]), Node(1, **DEADLY["filled"])))
    assert raised.value.failure.exit_code == 4


def test_live_memory_passes():
    require_live_inputs(
        capture_of(
            Node(0, "kernel", kernel=kernel(LIVE)),
            Node(1, "memcpy", copy=Copy("dtoh", 512, source_tensor=LIVE)),
            Node(2, "memset", fill=Fill(512, 0)),
            Node(3, "host"),
            Node(4, "empty"),
        )
    )


@pytest.mark.parametrize(
    ("op", "parameter_bytes", "exit_code"),
    [
        (None, 8, 4),
        ("mylib::scale", 8, 4),
        # The address book has seen that this op uses freed memory.
        ("aten::sum.dim_IntList", 1032, 4),
        ("mylib::scale", 1032, 5),
        (None, 1032, 5),
    ],
)
def test_an_address_in_a_struct_is_certain_only_where_the_tensors_of_the_op_are_known(
    op, parameter_bytes, exit_code
):
    captured = capture_of(
        Node(0, origin=0, **DEADLY["kernel"]),
        origins=(Origin(op, frames=(0,)),),
        parameter_bytes=(parameter_bytes,),
    )
    with pytest.raises(CgtoolError) as raised:
        require_live_inputs(captured)
    assert raised.value.failure.exit_code == exit_code
    assert raised.value.failure.frames == (FRAME,)
