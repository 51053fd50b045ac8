"""What the ops of a capture say as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from cgtool.detectors.collect import at_call
from cgtool.detectors.streams import LaneNode
from cgtool.findings.registry import code
from cgtool.model.finding import Finding
from cgtool.observe.ops import OpCall, Record

MEMCPY_MEMSET_NODE_OVERHEAD = code("memcpy-memset-node-overhead")

_MOVES = frozenset(
    ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::fill_", "aten::zero_", "aten::zeros",
     "aten::contiguous", "aten::zeros_like", "aten::_foreach_zero_", "aten::_foreach_copy_")
)  # fmt: skip
_ENOUGH = 16
"""Fewer are not worth a word."""
_SHARE = 0.4


def look(nodes: Sequence[LaneNode], record: Record) -> Iterator[Finding]:
    """Findings about one captured graph, from the ops that became its nodes."""
    moves = [one.call for one in nodes if one.call.name.partition(".")[0] in _MOVES]
    if len(moves) >= _ENOUGH and len(moves) >= _SHARE * len(nodes):
        often = Counter(_line(one) for one in moves).most_common(1)[0][0]
        call = next(one for one in moves if _line(one) == often)
        yield at_call(
            Finding(
                MEMCPY_MEMSET_NODE_OVERHEAD,
                f"{len(moves)} of {len(nodes)} nodes copy, cast or fill; most of them come from "
                "here",
            ),
            call,
            record,
        )


def _line(call: OpCall) -> tuple[int, int]:
    return (id(call.chain[0][0]), call.chain[0][1]) if call.chain else (0, 0)
