"""Code that asks whether it is being captured, and does otherwise when the answer is yes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cgtool.model.finding import NOTE
from cgtool.observe.ops import OpCall

_READS = frozenset(
    ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::allclose")
)


def severity(eager: Sequence[OpCall], captured: Sequence[OpCall]) -> str | None:
    """A note when the capture is eager less some looks at values: each run of ops that it leaves
    out ends with a value that the host reads, to check or to warn. Else what the page says."""
    remaining = iter(captured)
    expected = next(remaining, None)
    last_left_out: OpCall | None = None
    for call in eager:
        if expected is not None and _key(call) == _key(expected):
            if last_left_out is not None and last_left_out.name not in _READS:
                return None
            expected, last_left_out = next(remaining, None), None
        else:
            last_left_out = call
    if expected is not None or (last_left_out is not None and last_left_out.name not in _READS):
        return None
    return NOTE


def _key(call: OpCall) -> tuple[Any, ...]:
    return call.name, tuple((id(code), lasti) for code, lasti in call.chain)
