"""``--select``: fields, patterns, and the errors of wrong ones."""

from __future__ import annotations

import pytest

from cgtool.analysis.graph.select import parse, select
from cgtool.model.failure import CgtoolError
from tests.builders import hostile, small


def chosen(*expressions: str) -> list[list[int]]:
    """Node ids by graph of the small capture."""
    capture, selection = small(), parse(expressions)
    return [
        [member for item in select(capture, index, selection).items for member in item.members]
        for index in range(2)
    ]


ALL_FORWARD, ALL_BACKWARD = [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("expression", "forward", "backward"),
    [
        ("module=layers.0", [0, 1, 2], [3]),
        ("module=layers.0.*", [0, 1], [3]),
        ("module=layers", [0, 1, 2, 3, 4, 5], [1, 3]),
        ("module=*.norm", [1, 4], []),
        ("module=(root)", [6], []),
        ("module=(no module)", [], [0, 2, 4]),
        ("module=layers.0.linear|*.norm", [0, 1, 4], [3]),
        ("op=aten::addmm", [0, 3], []),
        ("op=mm|addmm", [0, 3], [1, 3]),
        ("op=fill_", [], [0, 2, 4]),
        ("op=aten::fill_.Scalar", [], [0, 2, 4]),
        ("type=memcpy", [6], []),
        ("type!=kernel", [6], [0]),
        ("kernel=*gemm*", [0, 3], [1]),
        ("kernel=triton*", [2, 5], []),
        ("kernel=at::native::*|void at::native::*", [1, 4], [2, 3, 4]),
        ("kernel=_ZN7cutlass*", [], [1]),
        ("file=model.py", [0, 1, 2, 3, 4, 5], [1, 3]),
        ("file=/home/me/train.py", [6], [1, 3]),
        ("file=odel.py", [], []),
        ("line=model.py:12", [0, 3], [1, 3]),
        ("line=model.py:13-29", [1, 2, 4, 5], []),
        ("line=30", [0, 1, 2, 3, 4, 5], [1, 3]),
        ("stream=side*", [], [3]),
        ("stream=0", ALL_FORWARD, [0, 1, 2, 4]),
        ("phase=forward", ALL_FORWARD, []),
        ("graph=backward", [], ALL_BACKWARD),
        ("annotation=*gelu", [2, 5], []),
        ("node=1-2", [1, 2], [1, 2]),
        ("node=0|4", [0, 4], [0, 4]),
        ("module=layers.0,type=kernel,op!=addmm", [1, 2], [3]),
        ("kernel=a, b", [], []),
    ],
)
def test_fields(expression: str, forward: list[int], backward: list[int]) -> None:
    assert chosen(expression) == [forward, backward]


def test_several_must_all_hold() -> None:
    assert chosen("phase=forward", "type=kernel", "module=layers.1") == [[3, 4, 5], []]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("layers.0", "is not FIELD=PATTERN"),
        ("module=", "is not FIELD=PATTERN"),
        ("=x", "is not FIELD=PATTERN"),
        ("", "is not FIELD=PATTERN"),
        ("color=red", "there is no field 'color'"),
        ("type=kernel,modul=a", "there is no field 'modul'"),
        ("line=model.py", "is not FILE:LINE"),
        ("line=model.py:x", "is not FILE:LINE"),
        ("node=first", "is not a node number"),
        ("node=1-", "is not a node number"),
        ("node=7-3", "the range 7-3 is backwards"),
        ("line=model.py:9-2", "the range 9-2 is backwards"),
    ],
)
def test_a_wrong_selection_names_what_is_wrong(expression: str, reason: str) -> None:
    with pytest.raises(CgtoolError, match=reason) as caught:
        parse([expression])
    failure = caught.value.failure
    assert failure.exit_code == 2
    assert failure.fix
    if "no field" in reason:
        assert "module" in failure.fix
        assert "annotation" in failure.fix


@pytest.mark.parametrize("pattern", ["[", "[!", "*" * 50 + "z", "\\", "(?P<", "a" * 10_000])
def test_odd_patterns_match_nothing_and_end(pattern: str) -> None:
    for field in ("module", "op", "kernel", "file", "annotation", "stream"):
        select(hostile(), 0, parse([f"{field}={pattern}"]))
