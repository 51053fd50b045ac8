"""Where an address leads, from what the allocator reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings.driver")
from cgtool.devices.cuda.steps import _Memory

OWN, NONE = (0, 3), (0, 0)


def block(address: int, size: int, state: str, requested: int | None = None) -> dict[str, Any]:
    return {
        "address": address, "size": size, "requested_size": requested or size, "state": state,
        "frames": at(5),
    }  # fmt: skip


def at(line: int) -> list[dict[str, Any]]:
    inside = {"filename": torch.__file__, "line": 9, "name": "inside"}
    return [inside, {"filename": "/home/me/model.py", "line": line, "name": "f"}]


def event(action: str, address: int, size: int, line: int) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "frames": at(line),
        "time_us": line * 100,
    }


BASE = 0x7F00_0000_0000
SNAPSHOT: dict[str, Any] = {
    "segments": [
        {"segment_pool_id": NONE, "blocks": [
            block(BASE, 512, "active_allocated", 400), block(BASE + 512, 512, "inactive"),
        ]},
        {"segment_pool_id": OWN, "blocks": [block(BASE + 4096, 512, "inactive")]},
    ],
    "device_traces": [[
        event("alloc", BASE + 512, 300, 7), event("free_requested", BASE + 512, 300, 8),
        event("free_completed", BASE + 512, 300, 8),
        event("alloc", BASE - 8192, 100, 1), event("free_requested", BASE - 8192, 100, 2),
        event("alloc", BASE - 8192, 256, 11), event("free_requested", BASE - 8192, 256, 12),
        event("segment_free", BASE - 9000, 4096, 13),
    ]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (BASE, (True, "in a block of 400 bytes, allocated at model.py:5")),
        (
            BASE + 16,
            (True, "in a block of 400 bytes, allocated at model.py:5, 16 bytes from its start"),
        ),
        (
            BASE + 408,
            (False, "8 bytes beyond the end of a block of 400 bytes, allocated at model.py:5"),
        ),
        (
            BASE + 520,
            (False, "in freed memory of 300 bytes, allocated at model.py:7, freed at model.py:8"),
        ),
        (BASE + 4100, (True, "in the memory of the graph")),
        (BASE + 5000, (False, "in no allocation, 392 bytes beyond the end of one")),
        (
            BASE - 8192 + 200,
            (
                False,
                "in freed memory of 256 bytes, allocated at model.py:11, freed at model.py:12, "
                "given back at model.py:13",
            ),
        ),
        (BASE + (1 << 40), None),
        (1 << 33, None),
    ],
)
def test_an_address_leads_to_a_block_or_to_what_was_there(
    address: int, expected: tuple[bool, str] | None
) -> None:
    found = list(_Memory(SNAPSHOT, OWN, 0).place(address, is_pointer=True))
    assert found == ([] if expected is None else [expected])


def test_a_word_of_a_struct_leads_only_to_what_was_freed_after_the_capture() -> None:
    def place(address: int, captured_us: int) -> list[tuple[bool, str]]:
        return list(_Memory(SNAPSHOT, OWN, captured_us).place(address, is_pointer=False))

    assert place(BASE + 5000, 0) == []
    assert place(BASE + 520, 801) == []
    assert [is_usual for is_usual, _ in place(BASE + 520, 800)] == [False]
    # Freed before the capture, and given back after it.
    assert place(BASE - 8192, 1250) == []
