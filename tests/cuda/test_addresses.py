"""The memory behind an address: the interval that has it, however many begin closer by."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cgtool.devices.cuda.memory import AddressBook, Trace
from cgtool.model.capture import Allocation, Tensor

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
