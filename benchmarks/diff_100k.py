"""``cgtool diff`` of two captures of 100,000 nodes: `python benchmarks/diff_100k.py [NODES]`,
or `--case NAME` for one case alone.

The cases are those that are hard on a diff: nothing in common, every other node changed, blocks in
another order, indistinguishable nodes, loops unrolled thousands of times. Each runs as a
whole process, as a user runs it. Targets, on 2 cores: 3 s and 1 GB each. A diff that is slower runs
again, at most three times. Exit code 3 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import structs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cgtool.model.capture import Capture, Edge, Graph, Node  # noqa: E402
from cgtool.model.capture_file import write  # noqa: E402
from tests.builders import huge  # noqa: E402

SECONDS, MEGABYTES, ROUNDS = 3.0, 1000.0, 3
CGTOOL = (sys.executable, "-m", "cgtool.cli.app")
Rewrite = Callable[[Sequence[Node]], list[Node]]
Pair = tuple[Capture, Capture]


def rewritten(capture: Capture, rewrite: Rewrite) -> Capture:
    """The capture with other nodes, renumbered. They wait for each other as before: over a node
    that is gone its neighbors do, and one that is new stands between two. In another order each
    waits for the one before."""
    graphs = []
    for graph in capture.graphs:
        before: list[list[int]] = [[] for _ in graph.nodes]
        for edge in graph.edges:
            before[edge.target].append(edge.source)
        rewritten_nodes = rewrite(graph.nodes)
        nodes = tuple(structs.replace(node, id=at) for at, node in enumerate(rewritten_nodes))
        if all(node.id <= other.id for node, other in pairwise(rewritten_nodes)):
            edges = _contracted([node.id for node in rewritten_nodes], before)
        else:
            edges = [Edge(at - 1, at) for at in range(1, len(nodes))]
        graphs.append(structs.replace(graph, nodes=nodes, edges=tuple(edges)))
    allocations = tuple(
        structs.replace(allocation, node=None) for allocation in capture.memory.allocations
    )
    memory = structs.replace(capture.memory, allocations=allocations)
    return structs.replace(capture, graphs=tuple(graphs), memory=memory)


def _contracted(kept: list[int], before: list[list[int]]) -> list[Edge]:
    """Edges between the nodes that are kept (old numbers, in order, some of them twice)."""
    edges: list[Edge] = []
    stands: list[set[int]] = []
    at = 0
    for node, sources in enumerate(before):
        ends = set().union(*(stands[source] for source in sources))
        while at < len(kept) and kept[at] == node:
            edges += [Edge(end, at) for end in sorted(ends)]
            ends = {at}
            at += 1
        stands.append(ends)
    return edges


def one_graph(capture: Capture) -> Capture:
    """All nodes in one graph, which is harder than half of them in each of two."""
    first, second = capture.graphs
    shift = len(first.nodes)
    nodes = [structs.replace(node, id=node.id + shift) for node in second.nodes]
    edges = [Edge(edge.source + shift, edge.target + shift) for edge in second.edges]
    graph = Graph(
        "step", "step", pool=0, nodes=(*first.nodes, *nodes), edges=(*first.edges, *edges)
    )
    allocations = tuple(
        structs.replace(allocation, graph=0, node=None) for allocation in capture.memory.allocations
    )
    memory = structs.replace(capture.memory, allocations=allocations)
    return structs.replace(capture, graphs=(graph,), memory=memory)


def relaunched(node: Node, grid: int) -> Node:
    """The node with another grid; a copy stays as it is."""
    if node.kernel is None:
        return node
    kernel = structs.replace(node.kernel, grid=(grid, 1, 1))
    return structs.replace(node, kernel=kernel)


def cases(count: int, wanted: str | None = None) -> Iterator[tuple[str, Capture, Capture]]:
    """Pairs of captures, built one after the other; only the one of that name, if one is wanted."""
    draw = random.Random()
    base = huge(count)

    def blocks(nodes: Sequence[Node]) -> list[Node]:
        pieces = [nodes[at : at + 100] for at in range(0, len(nodes), 100)]
        draw.shuffle(pieces)
        return [node for piece in pieces for node in piece]

    def loops(nodes: Sequence[Node]) -> list[Node]:
        return [structs.replace(nodes[at % 40], id=at) for at in range(len(nodes))]

    def alike(nodes: Sequence[Node]) -> list[Node]:
        return [structs.replace(nodes[0], id=at) for at in range(len(nodes))]

    def thinned(nodes: Sequence[Node]) -> list[Node]:
        return [node for node in nodes if draw.random() > 0.02]

    def mixed(nodes: Sequence[Node]) -> list[Node]:
        chosen = []
        for node in nodes:
            roll = draw.random()
            if roll > 0.02:
                chosen.append(relaunched(node, 999) if roll > 0.98 else node)
            if 0.5 < roll < 0.52:
                chosen.append(relaunched(node, 777))
        return chosen

    def few(nodes: Sequence[Node]) -> list[Node]:
        return [structs.replace(nodes[draw.randrange(4)], id=at) for at in range(len(nodes))]

    def both(rewrite: Rewrite, change: Rewrite) -> Pair:
        capture = rewritten(base, rewrite)
        return capture, rewritten(capture, change)

    def single(change: Rewrite) -> Pair:
        capture = one_graph(base)
        return capture, rewritten(capture, change)

    def two(capture: Capture) -> Pair:
        return rewritten(capture, few), rewritten(capture, few)

    def other(nodes: Sequence[Node]) -> list[Node]:
        return [relaunched(node, 999) if node.id % 2 else node for node in nodes]

    def every(nodes: Sequence[Node]) -> list[Node]:
        return [relaunched(node, 100 + node.id) for node in nodes]

    builders: dict[str, Callable[[], Pair]] = {
        "the same": lambda: (base, base),
        "2% of the nodes gone": lambda: (base, rewritten(base, thinned)),
        "2% gone, 2% new, 2% changed": lambda: (base, rewritten(base, mixed)),
        "every other node changed": lambda: (base, rewritten(base, other)),
        "every node changed": lambda: (base, rewritten(base, every)),
        "nothing in common": lambda: (base, elsewhere(base)),
        "blocks in another order": lambda: (base, rewritten(base, blocks)),
        "all nodes alike, 2% gone": lambda: both(alike, thinned),
        "a loop, 2% gone, 2% new": lambda: both(loops, mixed),
        "a loop in another order": lambda: both(loops, blocks),
        "four kinds at random": lambda: two(base),
        "one graph: mixed changes": lambda: single(mixed),
        "one graph: other order": lambda: single(blocks),
        "one graph: four kinds": lambda: two(one_graph(base)),
    }
    for name in [wanted] if wanted else builders:
        if name not in builders:
            raise SystemExit(f"no case {name!r}; one of: {'; '.join(builders)}")
        # A case is the same by itself and among the others.
        draw.seed(7)
        yield name, *builders[name]()


def elsewhere(capture: Capture) -> Capture:
    """Other modules, ops, functions and kernels."""
    origins = tuple(
        structs.replace(origin, op=f"{origin.op}_other", module=f"other.{origin.module}")
        for origin in capture.origins
    )
    functions = tuple(
        structs.replace(function, name=f"other_{at}")
        for at, function in enumerate(capture.functions)
    )
    recorded = rewritten(capture, lambda nodes: [relaunched(node, 12345) for node in nodes])
    return structs.replace(recorded, origins=origins, functions=functions)


def measure(command: list[str], output: Path) -> tuple[float, float, float]:
    """Seconds, seconds of the processor, and peak megabytes of one run."""
    start = time.perf_counter()
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main() -> int:
    """Print a table; 3 when a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("nodes", nargs="?", type=int, default=100_000)
    parser.add_argument("--case", help="the name of one, as the table has it")
    options = parser.parse_args()
    count: int = options.nodes
    missed = False
    print(f"{count:,} nodes\n{'case':34}{'format':>8}{'seconds':>9}{'CPU':>7}{'peak MB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        a, b, output = (Path(folder) / name for name in ("a.cgt", "b.cgt", "out"))
        for name, before, after in cases(count, options.case):
            write(a, before)
            write(b, after)
            for format_ in ("table", "json"):
                command = [*CGTOOL, "diff", str(a), str(b), "--format", format_]
                runs = [measure(command, output)]
                while len(runs) < ROUNDS and min(runs)[0] > SECONDS:
                    runs.append(measure(command, output))
                seconds, processor = min(runs)[:2]
                peak = max(run[2] for run in runs)
                miss = seconds > SECONDS or peak > MEGABYTES
                missed |= miss
                print(
                    f"{name:34}{format_:>8}{seconds:9.2f}{processor:7.2f}{peak:9.0f}"
                    f"{'  missed' if miss else ''}",
                    flush=True,
                )
                if format_ == "table":
                    print(f"    {output.read_text().splitlines()[0]}", flush=True)
    return 3 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
