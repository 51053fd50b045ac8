"""Which graph of one run of a program is which of another.

A program captures its graphs in any order, so they are matched by who captures them and by what
they do, not by their place.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence

from cgtool.analysis.diff.pairing import Reader
from cgtool.analysis.ledger_findings import by_line
from cgtool.model.capture import Capture
from cgtool.model.ledger import COMPILE

Keys = dict[int, Sequence[Hashable]]
"""By graph, what must be equal, each key less than the one before."""


def match_programs(a: Capture, b: Capture, reader_a: Reader, reader_b: Reader) -> dict[int, int]:
    """The graphs of ``a`` by those of ``b`` that they are. Both have a ledger.

    1. The same owner, key, file and function, and the same nodes, in the same process.
    2. The same in another process.
    3. The only graph of that owner, key, file and function in both: its nodes have changed.
    """
    ours, theirs = _keys(a, reader_a), _keys(b, reader_b)
    partner: dict[int, int] = {}
    for level in range(3):
        taken = set(partner.values())
        waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        for graph, keys in ours.items():
            if graph not in taken:
                waiting[keys[level]].append(graph)
        left = {graph: keys for graph, keys in theirs.items() if graph not in partner}
        counts = Counter(keys[level] for keys in left.values())
        for graph, keys in left.items():
            same = waiting[keys[level]]
            if same and (level < 2 or len(same) == counts[keys[level]] == 1):
                partner[graph] = same.popleft()
    return partner


def _keys(capture: Capture, reader: Reader) -> Keys:
    assert capture.ledger is not None
    # Graphs that only hold a pool are alike.
    keys: Keys = {
        entry.graph: (entry.process, COMPILE, None)
        for entry in capture.ledger.graphs
        if entry.graph is not None and entry.holds_a_pool
    }
    for line in by_line(capture, capture.ledger):
        place = line.place
        where = None if place is None else (place.file.rpartition("/")[2], place.function)
        for entry in line.entries:
            if entry.graph is not None:
                facts = reader.facts(capture.graphs[entry.graph]).of
                who = entry.owner, entry.key, where
                work = tuple((fact.op, fact.type, fact.name, fact.sizes) for fact in facts)
                keys[entry.graph] = (entry.process, who, work), (who, work), who
    return keys
