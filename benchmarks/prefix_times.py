"""Node times compared with parts of the graph: `benchmarks/prefix_times.py [SPEC...]`.

What `cgtool profile` shows of a whole replay sums up to that replay by its own making: gaps are
scaled until it does. So here the first quarter, half and three quarters of a graph's nodes are
instantiated as a graph and replayed without a profiler. The node times and gaps that the profile
of the whole graph shows up to there must sum up to that, which nothing has fitted them to.

`off` is the sum less the part's own replay, as a share of the whole replay. It needs a GPU, and
cupti-python; one process for each SPEC.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from node_times import DEFAULT

CUTS = (0.25, 0.5, 0.75)
REPLAYS = 20
LIMIT = 0.02


def rows(spec: str) -> Iterator[dict[str, Any]]:
    """One row for each graph and cut, measured in this process."""
    import msgspec
    import torch

    from cgtool.analysis.timing import gaps
    from cgtool.devices.cuda import node_times, profile
    from cgtool.devices.cuda.capture import assemble, prepare, time_launches
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.devices.cuda.event_times import empty_ns
    from cgtool.model.measurements import Profile
    from cgtool.model.options import CaptureOptions
    from cgtool.program.load import load

    def quiet(_text: str) -> None: ...

    session = prepare(CudaDevice(), load(spec, device="cuda"), CaptureOptions(), quiet)
    time_launches(session)
    alone = tuple(profile._times(session, [None] * len(session.graphs), REPLAYS))
    timed = node_times.record(session, quiet)
    around = node_times.around_ns(REPLAYS)
    parts: list[tuple[int, int, float]] = []
    with torch.cuda.stream(session.stream):
        empty = median(empty_ns(REPLAYS))
        for index, part in enumerate(session.graphs):
            count = part.node_count()
            for first in sorted({round(count * cut) for cut in CUTS} - {0, count}):
                measured = Part(part.graph, first).median_ns(session, index) - empty
                parts.append((index, first, measured))
    # Nothing is replayed behind this: it frees memory that the graphs use.
    capture, _ = assemble(session)
    profiled = Profile(route=timed.route, graphs=alone, around_ns=around)
    capture = msgspec.structs.replace(timed.add(capture), profile=profiled)
    name = spec.rpartition("/")[2].removesuffix(":build").removesuffix(".py")
    for index, first, measured in parts:
        graph, line = capture.graphs[index], gaps.timeline_of(capture, index)
        shown = up_to(graph, first, line.scale) + line.around_ns
        yield {
            "graph": f"{name}/{graph.name}",
            "nodes": f"{first}/{len(graph.nodes)}",
            "replay_ns": line.replay_ns,
            "part_ns": measured,
            "shown_ns": shown,
            "off": (shown - measured) / line.total_ns,
        }


class Part:
    """The first nodes of a graph, in the order of their creation, as a graph of its own."""

    def __init__(self, graph: Any, first: int) -> None:
        from cgtool.devices.cuda.driver import check, cu, graph_nodes

        template = cu.CUgraph(graph.raw_cuda_graph())
        clone = check("cuGraphClone", cu.cuGraphClone(template))
        for node in reversed(graph_nodes(int(template))[first:]):
            original = cu.CUgraphNode(node)
            copy = check("cuGraphNodeFindInClone", cu.cuGraphNodeFindInClone(original, clone))
            check("cuGraphDestroyNode", cu.cuGraphDestroyNode(copy))
        self._check, self._cu = check, cu
        self._executable = check("cuGraphInstantiate", cu.cuGraphInstantiate(clone, 0))

    def median_ns(self, session: Any, index: int) -> float:
        """Of replays after those of the graphs before it: a backward overwrites what it reads, and
        only another forward writes it again."""
        from cgtool.devices.cuda.event_times import once_ns

        stream = self._cu.CUstream(session.stream.cuda_stream)

        def launch() -> None:
            self._check("cuGraphLaunch", self._cu.cuGraphLaunch(self._executable, stream))

        taken = []
        for _ in range(REPLAYS + 1):
            # All, so that the caches hold what they hold before a whole replay.
            for before in (*session.graphs, *session.graphs[:index]):
                before.graph.replay()
            taken.append(once_ns(launch))
        return median(taken[1:])


def up_to(graph: Any, first: int, scale: float) -> float:
    """Node times and scaled gaps of the first nodes, as the profile of the whole graph shows
    them."""
    busy, reach, begin = 0, None, 0
    spans = sorted(
        (node.start_ns, node.start_ns + node.duration_ns)
        for node in graph.nodes
        if node.id < first and node.duration_ns is not None
    )
    for start, end in spans:
        if reach is None:
            begin = reach = start
        busy += max(0, end - max(start, reach))
        reach = max(reach, end)
    span = 0 if reach is None else reach - begin
    return busy + (span - busy) * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", default=DEFAULT)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(list(rows(arguments.one))))
        return
    parts: list[dict[str, Any]] = []
    for spec in arguments.specs:
        run = subprocess.run(
            [sys.executable, __file__, "--one", spec],
            stdout=subprocess.PIPE, text=True, check=False, env=os.environ,
        )  # fmt: skip
        if run.returncode:
            print(f"{spec}: exit {run.returncode}")
            continue
        for row in json.loads(run.stdout.splitlines()[-1]):
            parts.append(row)
            print(
                f"{row['graph']:40} {row['nodes']:>9} {row['part_ns'] / 1e3:>8.1f} us "
                f"{row['shown_ns'] / 1e3:>8.1f} us {row['off']:>+7.2%}",
                flush=True,
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(parts, indent=1))
    within = sum(abs(row["off"]) <= LIMIT for row in parts)
    print(f"\n{within} of {len(parts)} parts within {LIMIT:.0%} of the whole replay")


if __name__ == "__main__":
    main()
