"""Chooses among equal graphs for each launch of a trace, by the launches before and after it.

``torch.compile`` captures a graph where the program first runs it, and replays it from then on. So
the captures, the first replays and the last replays of a process, each in their order, show which
of its graphs are launched one after the other. Engines capture in an order of their own, which
shows nothing: for their graphs, only the sizes of the kernels count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from cgtool.model.capture import Capture
from cgtool.model.ledger import LedgerGraph

Role = tuple[int, str] | None
"""Process and key of a graph of ``torch.compile``; graphs of equal roles follow the same ones."""
UNKNOWN_PAIR, OTHER_SIZES = 2, 1
"""The cost of a pair of launches that no process showed, and of a graph of other sizes."""


def narrowed(capture: Capture, options: Sequence[Mapping[int, int]]) -> list[tuple[int, ...]]:
    """For each launch, in order, the graphs that it replayed in some way through all launches that
    costs the least. ``options``: the graphs that it may be, and what each costs."""
    entries = capture.ledger.graphs if capture.ledger else ()
    compiled = [entry for entry in entries if entry.owner == "torch.compile" and entry.key]
    role_of: dict[int, Role] = {
        entry.graph: (entry.process, entry.key) for entry in compiled if entry.graph is not None
    }
    roles: list[dict[Role, int]] = []
    for graphs in options:
        least: dict[Role, int] = {}
        for graph, cost in graphs.items():
            role = role_of.get(graph)
            least[role] = min(cost, least.get(role, cost))
        roles.append(least)
    cost_of = _pair_costs(compiled)
    before = _least_costs(roles, cost_of)
    after = _least_costs(roles[::-1], lambda source, target: cost_of(target, source))[::-1]
    kept: list[tuple[int, ...]] = []
    for graphs, least, left, right in zip(options, roles, before, after, strict=True):
        total = {role: left[role] + right[role] - least[role] for role in least}
        best = min(total.values(), default=0)
        kept.append(
            tuple(
                graph
                for graph, cost in graphs.items()
                if total[role := role_of.get(graph)] == best and cost == least[role]
            )
        )
    return kept


def _pair_costs(compiled: Sequence[LedgerGraph]) -> Callable[[Role, Role], int]:
    seen: set[tuple[Role, Role]] = set()
    for process in {entry.process for entry in compiled}:
        own = [entry for entry in compiled if entry.process == process]
        for moments in (
            [(entry.began_ns, entry) for entry in own],
            [(entry.first_replay_ns, entry) for entry in own],
            [(entry.last_replay_ns, entry) for entry in own],
        ):
            timed = sorted((at, entry.number, entry.key) for at, entry in moments if at is not None)
            seen.update(
                ((process, first), (process, second))
                for (_, _, first), (_, _, second) in pairwise(timed)
            )
    keys = {(entry.process, entry.key) for entry in compiled}

    def cost(source: Role, target: Role) -> int:
        if source is None or target is None or (source, target) in seen:
            return 0
        # Inference may run one graph again and again; in training, its backward comes between.
        process, key = source
        is_trained = (process, key.replace(" forward", " backward")) in keys
        repeats = source == target and key.endswith(" forward") and not is_trained
        return 0 if repeats else UNKNOWN_PAIR

    return cost


def _least_costs(
    roles: Sequence[Mapping[Role, int]], cost_of: Callable[[Role, Role], int]
) -> list[dict[Role, int]]:
    """For each launch and role, what the launches up to this one cost at least."""
    costs: list[dict[Role, int]] = []
    last: dict[Role, int] = {}
    for own in roles:
        last = {
            role: cost
            + min((sum_ + cost_of(source, role) for source, sum_ in last.items()), default=0)
            for role, cost in own.items()
        }
        costs.append(last)
    return costs
