"""The memory behind an address: the interval that has it, however many begin closer by."""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.devices.cuda.nodes import GraphReader
from cgtool.model.capture import Allocation, Block, Segment, Tensor

BLOCKS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), max_size=30)


@given(BLOCKS, st.integers(0, 80), st.integers(0, 30))
def test_an_allocation_is_the_last_given_out_before_the_node(blocks, address, moment):
    """One allocator event each, at time 2, 4, 6, ...; the node is created after ``moment``."""
    allocations = [
        Allocation(start, size, size, 0, 0, number) for number, (start, size) in enumerate(blocks)
    ]
    trace = Trace(event_times_ns=[2 * number + 2 for number in range(len(blocks))])
    book = AddressBook(trace, allocations, (), [[2 * moment + 1]])
    covering = [
        number
        for number, (start, size) in enumerate(blocks[:moment])
        if start <= address < start + size
    ]
    expected = (covering[-1], None) if covering else None
    assert book.lookup(address, 0, 0) == expected


@given(BLOCKS, st.integers(0, 80))
def test_a_tensor_behind_any_number_of_views_is_found(blocks, address):
    tensors = [Tensor(f"{number}", "input", *block) for number, block in enumerate(blocks)]
    book = AddressBook(Trace(), (), tensors, [])
    place = book.lookup(address, 0, 0)
    covering = [
        number for number, (start, size) in enumerate(blocks) if start <= address < start + size
    ]
    assert (place is None) == (not covering)
    assert place is None or place[1] in covering


@pytest.mark.parametrize(
    ("in_struct", "uses_live_only", "state", "kinds"),
    [
        (False, True, "inactive", ["freed"]),
        (True, False, "inactive", ["freed"]),
        (True, True, "inactive", []),
        (True, True, "active_allocated", ["other"]),
    ],
)
def test_a_word_in_a_struct_leads_into_freed_memory_only_if_the_op_may_have_used_some(
    in_struct, uses_live_only, state, kinds
):
    segment = Segment(4096, 1024, None, "small", (Block(4096, 512, 512, state),))
    nodes = [{7} if uses_live_only else set()]
    book = AddressBook(Trace(others=(segment,)), (), (), [[0] * 8], nodes)
    place = book.lookup(4100, 0, 7, in_struct=in_struct)
    assert [tensor.kind for tensor in book.tensors] == kinds
    assert place == ((None, 0) if kinds else None)


STALE = 0x7FC9CDB00200, 1_048_064
READ = 0x7F288FE00000, 16_384


@pytest.mark.parametrize(
    ("sizes", "words", "freed", "uses_live_only", "found"),
    [
        # The backward of smooth_l1_loss: its four tensors, and a word of the warm-up between them.
        (
            (4, 760),
            {424: STALE[0], 704: 0x7FC9DAD00A00, 712: 0x7FC9DAD00400, 720: 0x7FC9E3E01400},
            STALE,
            True,
            [],
        ),
        # `x + source` in a custom op that reads a tensor from outside.
        ((4, 4, 24), {0: 0x7F2879C04000, 8: 0x7F288FE04000, 16: READ[0]}, READ, False, [(2, 16)]),
        # A Triton kernel: each pointer is an argument.
        ((8, 8, 8, 4), {0: READ[0]}, READ, True, [(2, 0)]),
    ],
)
def test_arguments_as_an_h200_has_them(sizes, words, freed, uses_live_only, found):
    """As read with PyTorch 2.11, without the other words; ``words`` are in the last argument but
    those of four bytes."""
    number = max(position for position, size in enumerate(sizes) if size > 4)
    values = [ctypes.create_string_buffer(size) for size in sizes]
    for offset, word in words.items():
        ctypes.c_uint64.from_buffer(values[number], offset).value = word
    table = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    segment = Segment(freed[0], freed[1], None, "small", (Block(*freed, 0, "inactive"),))
    nodes = [{0} if uses_live_only else set()]
    book = AddressBook(Trace(others=(segment,)), (), (), [[0]], nodes)
    functions = SimpleNamespace(layout=lambda _function: [(0, size) for size in sizes])
    params = SimpleNamespace(kernelParams=ctypes.addressof(table))
    place_of = partial(book.lookup, graph=0, node=0)
    pointers, unread = GraphReader(functions, book)._arguments(params, None, place_of)
    assert unread is None
    assert [(pointer.parameter, pointer.offset) for pointer in pointers] == found
