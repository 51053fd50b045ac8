"""Memory by graph: `python benchmarks/graph_memory.py [--device simulated] [ENGINE...]`.

Four engines with 8 to 32 graphs are recorded. What `cgtool pools` says each graph added must sum up
to what ``torch.cuda.memory_snapshot()`` says of their pools, to the byte, and so must what they
keep. The estimates of one more size are printed, with how far off each is for the sizes that are
left out. Exit code 3 when a sum differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def capture_sizes(
    name: str, sizes: Iterable[int], build: Callable[[int], Callable[[], Any]], *, shared: bool
) -> None:
    """Capture each size, in one pool or in one each; print what the pools have in the end."""
    import torch

    import cgtool

    cuda: Any = torch.cuda
    pool = cuda.graph_pool_handle() if shared else None
    kept = []
    for size in sizes:
        work = build(size)
        side = cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        cgtool.note(**{name: size})
        with torch.cuda.graph(graph, pool=pool):
            result = work()
        kept.append((graph, result, work))
    pools = {graph.pool() for graph, *_ in kept}
    segments = cuda.memory_snapshot()
    mine = [each for each in segments if tuple(each["segment_pool_id"]) in pools]
    print(*(sum(each[of] for each in mine) for of in ("total_size", "active_size")))


def mlp() -> None:
    """16 batch sizes, the largest first, in one pool: later graphs fit into what is there."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    sizes = range(256, 0, -16)
    inputs = {size: torch.zeros(size, 1024, device="cuda") for size in sizes}
    capture_sizes("batch", sizes, lambda size: lambda: model(inputs[size]), shared=True)


def transformer() -> None:
    """8 batch sizes, the smallest first, in one pool: each grows it."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    sizes = (1, 2, 4, 8, 16, 32, 48, 64)
    inputs = {size: torch.zeros(size, 32, 256, device="cuda") for size in sizes}
    capture_sizes("batch", sizes, lambda size: lambda: model(inputs[size]), shared=True)


def convolutions() -> None:
    """12 image sizes, each in a pool of its own."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3)
    ).cuda().eval()  # fmt: skip
    sizes = range(32, 224, 16)
    inputs = {size: torch.zeros(4, 3, size, size, device="cuda") for size in sizes}
    capture_sizes("side", sizes, lambda size: lambda: model(inputs[size]), shared=False)


def decoder() -> None:
    """32 lengths of a cache, the longest first, in one pool; results are copied out."""
    import torch

    cache = torch.zeros(8, 8, 2048, 64, device="cuda")
    query = torch.zeros(8, 8, 1, 64, device="cuda")
    out = torch.zeros(8, 8, 1, 64, device="cuda")

    def build(length: int) -> Callable[[], None]:
        def attend() -> None:
            keys = cache[:, :, :length]
            scores = (query @ keys.transpose(2, 3)).softmax(-1)
            out.copy_(scores @ keys)

        return attend

    capture_sizes("length", range(2048, 0, -64), build, shared=True)


ENGINES = {each.__name__: each for each in (mlp, transformer, convolutions, decoder)}


def measured(name: str, device: list[str], folder: Path) -> bool:
    """Record an engine, and print how its sums and estimates are. Whether the sums agree."""
    cgtool = [sys.executable, "-m", "cgtool"]
    recorded = folder / f"{name}.cgt"
    program = [__file__, "--run", name]
    done = subprocess.run(
        [*cgtool, "run", "-q", *device, "-o", str(recorded), "--", sys.executable, *program],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        print(f"{name}: {done.stderr[-1500:]}")
        return False
    reserved, used = map(int, done.stdout.split())
    shown = subprocess.run(
        [*cgtool, "pools", str(recorded), "--format", "json"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    report = json.loads(shown.stdout)
    rows = report["graph_memory"]
    sums = [sum(row[of] for row in rows) for of in ("grown_bytes", "kept_bytes")]
    driver = sum(row["exec_bytes"] or 0 for row in rows)
    agrees = sums == [reserved, used]
    print(
        f"{name}: {len(rows)} graphs, {reserved:,} bytes in pools, {used:,} in use, {driver:,} of "
        f"the driver: {'the sums agree' if agrees else f'the sums are {sums}'}"
    )
    for text in report["size_estimates"]:
        print(f"  {text}")
    return agrees


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {' '.join(ENGINES)}")
    parser.add_argument("--device")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        import torch

        torch.set_grad_enabled(False)
        ENGINES[arguments.run]()
        return 0
    device = ["--device", arguments.device] if arguments.device else []
    with tempfile.TemporaryDirectory() as folder:
        right = [measured(name, device, Path(folder)) for name in arguments.names or ENGINES]
    return 0 if all(right) else 3


if __name__ == "__main__":
    raise SystemExit(main())
