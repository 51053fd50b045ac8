"""`cgtool annotate` on traces of another process: `benchmarks/annotated_times.py [SPEC ...]`.

For each model, `cgtool profile` measures its graphs in one process. Another process, without
cgtool, builds the model again, captures it with PyTorch alone, and records replays with
`torch.profiler`. The table says how many kernels of that trace are joined to nodes, and how their
times differ from those of `profile`, as a whole and for the kernel in the middle.

Needs a GPU, with nothing else on it. Exit code 1 if a kernel is not joined, or a time is off.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from cgtool.model.capture_file import read

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = tuple(
    f"samples/{name}.py:build"
    for name in ("train_step", "transformer", "convnet", "mixed_precision", "decoder_step", "gan")
)
REPLAYS = 20
LIMIT, LEAST_NS = 0.1, 300
"""How far the times of a graph may be apart, and a kernel in the middle."""


def trace(spec: str, output: str) -> None:
    """The work of the other process."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    file, _, factory = spec.rpartition(":")
    built = runpy.run_path(file)[factory]("cuda")
    if not isinstance(built, tuple):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                built()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            built()
        step = graph.replay
    else:
        parts, arguments = built
        graphed: Any = torch.cuda.make_graphed_callables(parts, arguments)
        calls = (
            list(zip(graphed, arguments, strict=True))
            if isinstance(parts, tuple)
            else [(graphed, arguments)]
        )

        def step() -> None:
            results = [part(*own) for part, own in calls]
            for result in reversed(results):
                if result.requires_grad:
                    result.backward(torch.ones_like(result))

    for _ in range(REPLAYS):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(output)


def run(*command: object, codes: tuple[int, ...] = (0,)) -> str:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if done.returncode not in codes:
        sys.exit(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def compared(spec: str, folder: Path) -> dict[str, Any]:
    cgt, plain, joined = folder / "model.cgt", folder / "trace.json", folder / "joined.json"
    run("-m", "cgtool", "profile", spec, "-q", "--save", cgt)
    run(__file__, "--trace", spec, plain)
    arguments = (plain, "--with", cgt, "-o", joined, "--format", "json")
    report = json.loads(run("-m", "cgtool", "annotate", *arguments, codes=(0, 1)))
    traced: dict[str, list[float]] = defaultdict(list)
    for event in json.loads(joined.read_text())["traceEvents"]:
        if "matched by" in (args := event.get("args", {})):
            traced[args["node"]].append(event["dur"] * 1000)
    measured = {
        f"{graph.name}/{node.id}": node.duration_ns
        for graph in read(cgt).graphs
        for node in graph.nodes
        if node.duration_ns
    }
    pairs = [(median(times), measured[node]) for node, times in traced.items() if node in measured]
    return {
        "model": spec.rpartition("/")[2],
        "graphs": len(report["graphs"]),
        "launches": report["launches"],
        "records": report["records"],
        "how": report["how"],
        "joined": sum(report["how"].get(how, 0) for how in ("node id", "order")),
        "nodes": len(measured),
        "nodes_compared": len(pairs),
        "profile_us": sum(own for _, own in pairs) / 1000,
        "trace_us": sum(other for other, _ in pairs) / 1000,
        "middle_off_ns": median(abs(other - own) for other, own in pairs) if pairs else None,
    }


def is_off(row: dict[str, Any]) -> bool:
    return (
        row["joined"] != row["records"]
        or not row["nodes"]
        or row["nodes_compared"] != row["nodes"]
        or abs(row["trace_us"] / row["profile_us"] - 1) > LIMIT
        or row["middle_off_ns"] > LEAST_NS
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", default=[str(ROOT / spec) for spec in DEFAULT])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--trace", nargs=2, metavar=("SPEC", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        trace(*options.trace)
        return
    rows: list[dict[str, Any]] = []
    print(
        f"{'model':28} {'launches':>8} {'joined':>13} {'profile':>10} {'trace':>10} {'middle':>8}"
    )
    for spec in options.specs:
        with tempfile.TemporaryDirectory() as folder:
            row = compared(spec, Path(folder))
        rows.append(row)
        print(
            f"{row['model'][:28]:28} {row['launches']:>8} {row['joined']:>6}/{row['records']:<6} "
            f"{row['profile_us']:>7.1f} us {row['trace_us']:>7.1f} us "
            f"{row['middle_off_ns'] or 0:>5.0f} ns{'  off' * is_off(row)}",
            flush=True,
        )
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1))
    records, joined = (sum(row[key] for row in rows) for key in ("records", "joined"))
    print(f"\n{joined:,} of {records:,} kernels joined ({joined / records:.2%})")
    if any(map(is_off, rows)):
        sys.exit("a figure was missed")


if __name__ == "__main__":
    main()
