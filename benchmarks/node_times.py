"""`cgtool profile` on samples and other people's models: `benchmarks/node_times.py [SPEC...]`.

For every graph: how many of its nodes got a time, the sum of node times and gaps against the
replay's own time measured without a profiler, and, beside it, what was recorded raw: the first
start of a node to the last end in traced replays, which the profiler makes longer. The gaps that
cgtool shows are what the unprofiled replay leaves beside its busy time, so the sum can only part
from it where nodes took longer under the profiler than the whole replay does without.

Figures are counts and ratios within one process; they need a GPU, and cupti-python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from cgtool.model.capture import Graph
from cgtool.model.capture_file import read
from cgtool.model.measurements import GraphTimes

HERE = Path(__file__).resolve().parent
SAMPLES = (
    "mlp", "transformer", "decoder_step", "convnet", "gan", "train_step", "mixed_precision",
    "two_streams",
)  # fmt: skip
MODELS = (
    "bert", "gpt2", "llama", "t5", "vit", "timm_resnet18", "timm_vit", "timm_convnext",
    "timm_mobilenet", "timm_mixer",
)  # fmt: skip
DEFAULT = tuple(f"{HERE.parent / 'samples' / name}.py:build" for name in SAMPLES) + tuple(
    f"{HERE / 'model_zoo.py'}:{name}" for name in MODELS
)
LIMIT = 0.02
TIMED = ("kernel", "memcpy", "memset")


def busy_ns(graph: Graph) -> int:
    """The union of the nodes' times."""
    total, last = 0, 0
    spans = sorted(
        (node.start_ns, node.start_ns + node.duration_ns)
        for node in graph.nodes
        if node.start_ns is not None and node.duration_ns is not None
    )
    for start, end in spans:
        total += max(0, end - max(start, last))
        last = max(last, end)
    return total


def row(name: str, graph: Graph, times: GraphTimes) -> dict[str, Any]:
    own = median(times.replay_ns) - median(times.empty_ns)
    work = [node for node in graph.nodes if node.type in TIMED]
    busy = busy_ns(graph)
    gaps = max(0.0, own - busy)
    return {
        "graph": f"{name}/{graph.name}",
        "nodes": len(work),
        "timed": sum(node.duration_ns is not None for node in work),
        "replay_us": own / 1e3,
        "busy_us": busy / 1e3,
        "gaps_us": gaps / 1e3,
        "sum_off": (busy + gaps) / own - 1,
        "raw_off": median(times.traced_ns) / own - 1 if times.traced_ns else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", default=DEFAULT)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    failed = False
    print(f"{'graph':40} {'timed':>10} {'replay':>10} {'busy':>8} {'sum':>7} {'raw':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for spec in options.specs:
            saved = Path(folder) / "one.cgt"
            clock = time.perf_counter()
            run = subprocess.run(
                [sys.executable, "-m", "cgtool.cli.app", "profile", spec, "--save", str(saved),
                 "--quiet"],
                check=False, capture_output=True, text=True,
            )  # fmt: skip
            seconds = time.perf_counter() - clock
            if run.returncode:
                print(f"{spec}: exit {run.returncode}\n{run.stderr}")
                failed = True
                continue
            capture = read(saved)
            assert capture.profile is not None
            name = spec.rpartition("/")[2].removesuffix(":build").removesuffix(".py")
            for times in capture.profile.graphs:
                cells = row(name, capture.graphs[times.graph], times)
                cells["route"], cells["seconds"] = capture.profile.route, seconds
                rows.append(cells)
                failed |= cells["timed"] != cells["nodes"] or abs(cells["sum_off"]) > LIMIT
                print(
                    f"{cells['graph'][:40]:40} {cells['timed']:>4}/{cells['nodes']:<5} "
                    f"{cells['replay_us']:>7.1f} us {cells['busy_us'] / cells['replay_us']:>8.1%} "
                    f"{cells['sum_off']:>+7.1%} {cells['raw_off']:>+7.1%}",
                    flush=True,
                )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    nodes = sum(row["nodes"] for row in rows)
    print(f"\n{sum(row['timed'] for row in rows)} of {nodes} nodes timed in {len(rows)} graphs")
    if failed:
        sys.exit("a figure was missed")


if __name__ == "__main__":
    main()
