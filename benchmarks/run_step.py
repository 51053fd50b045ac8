"""What `cgtool run --step` costs: `python benchmarks/run_step.py [REPLAYS]` on a GPU.

An engine with eight graphs, of batches of 1 to 128, replays them in turn, under `cgtool run` with
and without `--step`. Outputs must have the same bits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGINE = """
import hashlib, json, sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True) for _ in range(4)),
    nn.Linear(256, 1000),
).cuda().eval()
graphs = []
with torch.no_grad():
    for batch in (1, 2, 4, 8, 16, 32, 64, 128):
        x = torch.zeros(batch, 16, 256, device="cuda")
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graphs.append((graph, x, y))
digest, times = hashlib.sha1(), []
for step in range(int(sys.argv[1])):
    graph, x, y = graphs[step % len(graphs)]
    x.normal_()
    torch.cuda.synchronize()
    began = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - began)
    digest.update(y.cpu().numpy().tobytes())
first, rest = times[: len(graphs)], times[len(graphs) :]
print(json.dumps({"first": sum(first), "rest": sum(rest), "outputs": digest.hexdigest()}))
"""


def measured(folder: Path, replays: int, *options: str) -> tuple[dict[str, object], int]:
    """What the engine prints, with the time of the whole command; nodes of its eight graphs."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from cgtool.model import capture_file

    (folder / "engine.py").write_text(ENGINE)
    command = [sys.executable, "-m", "cgtool", "run", "-q", "-o", "a.cgt", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "engine.py", str(replays)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    result = {**json.loads(done.stdout), "command": time.perf_counter() - began}
    capture = capture_file.read(folder / "a.cgt")
    return result, sum(len(graph.nodes) for graph in capture.graphs)


def main() -> int:
    replays = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        plain, nodes = measured(Path(folder), replays)
        stepped, _ = measured(Path(folder), replays, "--step")
    print(f"8 graphs with {nodes} nodes, {replays:,} replays")
    runs = nodes / 8 * (replays - 8)
    for name, result in (("run", plain), ("run --step", stepped)):
        first, rest, command = (float(str(result[key])) for key in ("first", "rest", "command"))
        print(
            f"{name:>10}: {command:6.1f} s in all, first replays {first / nodes * 1e6:6.1f} us a "
            f"node, others {rest / runs * 1e6:6.1f} us a node"
        )
    same = plain["outputs"] == stepped["outputs"]
    print("outputs have the same bits" if same else "outputs differ")
    return int(not same)


if __name__ == "__main__":
    raise SystemExit(main())
