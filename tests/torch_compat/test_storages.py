"""A reference to a storage is no owner of it."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from cgtool.torch_compat.private import storage_address, storage_use_count
from cgtool.torch_compat.storages import Layout, StorageMarks, StorageRef


def test_a_storage_is_named_and_measured() -> None:
    tensor = torch.ones(6)
    view = tensor[2:].view(2, 2)
    reference = StorageRef(view)
    storage = tensor.untyped_storage()
    assert reference.key == storage_address(tensor) == StorageRef(tensor).key
    assert (reference.address, reference.bytes) == (storage.data_ptr(), storage.nbytes())


def test_a_reference_adds_no_owner_and_sees_the_end() -> None:
    def follow() -> None:
        for _ in range(1000):
            tensor = torch.ones(4)
            reference = StorageRef(tensor)
            counts.add(storage_use_count(reference.key))
            view = tensor.view(2, 2)
            del tensor
            ends.append(reference.expired())
            del view
            ends.append(reference.expired())

    counts: set[int] = set()
    ends: list[bool] = []
    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {1}
    assert sorted(ends) == [False] * 3000 + [True] * 3000


def test_a_tensor_made_of_a_reference_is_one_more_owner() -> None:
    tensor = torch.arange(6.0)
    layout = Layout.of(tensor[2:].view(2, 2))
    reference = StorageRef(tensor)
    for _ in range(3):
        other = reference.tensor(layout)
        assert other is not None
        assert other.tolist() == [[2, 3], [4, 5]]
        assert storage_use_count(reference.key) == 2
        del other
        assert storage_use_count(reference.key) == 1
    del tensor
    assert reference.tensor(layout) is None


def test_a_tensor_without_a_storage_is_an_error() -> None:
    with pytest.raises(NotImplementedError):
        StorageRef(torch.eye(2).to_sparse())


def test_marks_are_put_and_dropped_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def mark() -> None:
        kept = torch.ones(4)
        marks.put(kept, "kept")
        for _ in range(3000):
            fresh = torch.ones(4)
            seen.add(marks.get(storage_address(fresh)))
            marks.put(fresh, "freed")
        ends.append(marks.get(storage_address(kept)))

    # Often dropped, by threads that take turns all the time.
    monkeypatch.setattr(StorageMarks, "_FEWEST", 8)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    marks = StorageMarks()
    seen: set[str | None] = set()
    ends: list[str | None] = []
    threads = [threading.Thread(target=mark) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert seen == {None}
    assert ends == ["kept"] * 4
