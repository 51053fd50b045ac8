"""The memory behind tensors that have no storage of their own."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cgtool.observe.tensors import DEVICE, HOST, marked_places, place_of, put, strided_parts


def test_a_strided_tensor_is_its_own_part():
    tensor = torch.ones(3)
    ((suffix, part),) = strided_parts(tensor)
    assert suffix == ""
    assert part is tensor
    assert strided_parts(torch.ones(0))[0][0] == ""


@pytest.mark.parametrize(
    ("tensor", "suffixes"),
    [
        (torch.eye(4).to_sparse(), [".indices", ".values"]),
        (torch.eye(4).requires_grad_().to_sparse(), [".indices", ".values"]),
        (torch.eye(4).to_sparse_csr(), [".crow_indices", ".col_indices", ".values"]),
        (torch.eye(4).to_sparse_csc(), [".ccol_indices", ".row_indices", ".values"]),
        (torch.eye(4).to_sparse_bsr((2, 2)), [".crow_indices", ".col_indices", ".values"]),
        (torch.nested.nested_tensor([torch.ones(2, 3)]), [".values"]),
    ],
)
def test_parts_have_addresses_and_sizes(tensor, suffixes):
    parts = strided_parts(tensor)
    assert [suffix for suffix, _ in parts] == suffixes
    for _, part in parts:
        assert part.data_ptr() != 0
        assert part.nbytes > 0


def test_a_jagged_tensor_holds_values_and_offsets():
    tensor = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    parts = dict(strided_parts(tensor))
    assert parts["._values"].shape == (6, 3)
    assert "._offsets" in parts


def test_tensors_without_data_have_no_parts():
    assert strided_parts(torch.ones(3, device="meta")) == []
    with FakeTensorMode():
        assert strided_parts(torch.ones(3)) == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("elements", [0, 100])
def test_a_new_tensor_has_no_place_of_one_that_was_freed(device, elements):
    with marked_places():
        for _ in range(5000):
            freed = torch.empty(elements)
            put(freed, DEVICE)
            assert place_of(freed) == DEVICE
            del freed
            assert place_of(torch.empty(elements, device=device)) == HOST


def test_a_storage_keeps_its_place_when_its_memory_is_another():
    with marked_places():
        kept = torch.empty(4)
        put(kept, DEVICE)
        for _ in range(3000):
            put(torch.empty(1), DEVICE)
        kept.untyped_storage().resize_(1 << 20)
        assert place_of(kept.view(2, 2)) == DEVICE
        put(kept, HOST)
        assert place_of(kept) == HOST
