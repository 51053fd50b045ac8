"""The figures that need a GPU: `python benchmarks/gpu.py [nodes|ops|recorder|whole ...]`.

Every figure is a ratio or a count within this one run; nothing here is compared with a time from
another run. Results are printed as a table and written to gpu-figures.json (or $OUT).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

import torch
from cuda.bindings import driver as cu

from cgtool.devices.cuda import capture as cuda_capture
from cgtool.devices.cuda.device import CudaDevice
from cgtool.model.options import CaptureOptions
from cgtool.program.load import load
from cgtool.program.phases import call, differentiable, flatten_outputs, grads
from cgtool.program.workload import Workload, WorkloadPart

SAMPLES = (
    "mlp", "transformer", "decoder_step", "convnet", "gan", "train_step", "mixed_precision",
    "two_streams",
)  # fmt: skip
SMALL_OPS = 100_000
ROOT = Path(__file__).resolve().parent.parent


def quiet(_text: str) -> None:
    """No progress."""


def types_of(graph: torch.cuda.CUDAGraph) -> Counter[str]:
    """Node types of a captured graph, by the driver."""
    template = cu.CUgraph(graph.raw_cuda_graph())
    _, _, count = cu.cuGraphGetNodes(template, 0)
    _, nodes, count = cu.cuGraphGetNodes(template, count)
    kinds = (cu.cuGraphNodeGetType(node)[1] for node in nodes[:count])
    return Counter(kind.name.removeprefix("CU_GRAPH_NODE_TYPE_").lower() for kind in kinds)


def plain_capture(workload: Workload) -> list[tuple[str, torch.cuda.CUDAGraph]]:
    """A capture as a user would write it by hand: warm up on a side stream, capture, nothing
    watched."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    step = workload.kind == "step"
    with torch.cuda.stream(side):
        for part in workload.parts:
            for _ in range(3):
                outputs = flatten_outputs(call(part))
                backward = None if step else differentiable(part, outputs)
                if backward is not None:
                    grads(backward, False)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    pool = torch.cuda.graph_pool_handle()
    graphs, kept = [], []
    for index, part in enumerate(workload.parts):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, pool=pool):
            result = call(part)
        kept.append(result)
        graphs.append((f"forward {index}", graph))
    if not step:
        for index, part in reversed(list(enumerate(workload.parts))):
            backward = differentiable(part, flatten_outputs(kept[index]))
            if backward is None:
                continue
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.graph(graph, pool=pool):
                kept.append(grads(backward, False))
            graphs.append((f"backward {index}", graph))
    return graphs


def nodes() -> list[dict[str, object]]:
    """Counts and types against a plain capture, and provenance, for every sample."""
    rows = []
    for name in SAMPLES:
        spec = str(ROOT / "samples" / f"{name}.py:build")
        plain = [types_of(graph) for _, graph in plain_capture(load(spec, device="cuda"))]
        capture, _ = CudaDevice().capture(load(spec, device="cuda"), CaptureOptions(), quiet)
        ours = [Counter(node.type for node in graph.nodes) for graph in capture.graphs]
        every = [(graph, node) for graph in capture.graphs for node in graph.nodes]
        origins = [
            (graph, capture.origins[node.origin])
            for graph, node in every
            if node.origin is not None
        ]
        backward = [origin for graph, origin in origins if graph.phase == "backward"]
        rows.append(
            {
                "sample": name,
                "nodes": len(every),
                "types": dict(sum(ours, Counter())),
                "equal": ours == plain,
                "op": sum(origin.op is not None for _, origin in origins),
                "line": sum(
                    bool(origin.frames) or origin.forward is not None for _, origin in origins
                ),
                "module": sum(origin.module is not None for _, origin in origins),
                "backward": len(backward),
                "forward_line": sum(origin.forward is not None for origin in backward),
            }
        )
    return rows


OPS = """
y = x.relu()
y = x @ w
y = torch.nn.functional.layer_norm(x, (512,))
y = torch.softmax(x, -1)
y = x.sum()
y = x.t().contiguous()
y = torch.cat([x, x])
y = x.cumsum(0)
y = torch.nn.functional.gelu(x)
y = x.sort(-1)
y = torch.nn.functional.conv2d(image, kernel, padding=1)
y = torch.nn.functional.batch_norm(image, None, None, training=True)
y = torch.nn.functional.max_pool2d(image, 2)
y = torch.nn.functional.embedding(index, w)
y = x.index_select(0, index)
y = torch.nn.functional.dropout(x, 0.5)
y = torch.nn.functional.scaled_dot_product_attention(query, query, query)
y = x.topk(8)
y = x.to(torch.bfloat16)
y = torch.addmm(bias, x, w)
y = torch.baddbmm(query[0], query[0], query[0].transpose(1, 2) @ query[0])
y = torch.nn.functional.cross_entropy(x, index)
y = torch.einsum('ij,kj->ik', x, w)
y = x.scatter_add(0, index[:, None].expand(-1, 512), x)
y = x.clone().zero_()
y = torch.linalg.vector_norm(x)
""".strip().splitlines()

OPS_HEAD = """
import torch
torch.manual_seed(0)
x = torch.randn(512, 512, device="cuda")
w = torch.randn(512, 512, device="cuda")
bias = torch.randn(512, device="cuda")
image = torch.randn(4, 16, 32, 32, device="cuda")
kernel = torch.randn(16, 16, 3, 3, device="cuda")
index = torch.randint(512, (512,), device="cuda")
query = torch.randn(4, 4, 64, 64, device="cuda")
"""


def launches_of(captured: object, graph: object) -> list[str]:
    return [
        captured.functions[node.kernel.function].name if node.kernel else node.type
        for node in graph.nodes
    ]


def ops() -> list[dict[str, object]]:
    """Each op's launches, learned by capturing it alone, against what is attributed to its line
    when all of them are captured in one function."""
    wrong, total = [], 0
    with tempfile.TemporaryDirectory() as folder:
        alone = []
        for number, op in enumerate(OPS):
            file = Path(folder) / f"alone{number}.py"
            file.write_text(f"{OPS_HEAD}\ndef step():\n    {op}\n    return y\n")
            captured, _ = CudaDevice().capture(
                load(f"{file}:step", device="cuda"), CaptureOptions(), quiet
            )
            alone.append(launches_of(captured, captured.graphs[0]))
        file = Path(folder) / "together.py"
        body = "".join(f"    {op}\n" for op in OPS)
        file.write_text(f"{OPS_HEAD}\ndef step():\n{body}    return y\n")
        captured, _ = CudaDevice().capture(
            load(f"{file}:step", device="cuda"), CaptureOptions(), quiet
        )
        first = OPS_HEAD.count("\n") + 3
        graph = captured.graphs[0]
        names = launches_of(captured, graph)
        by_line: dict[int, list[str]] = {}
        for node, name in zip(graph.nodes, names, strict=True):
            frame = captured.frames[captured.origins[node.origin].frames[0]]
            by_line.setdefault(frame.line, []).append(name)
        for number, (op, expected) in enumerate(zip(OPS, alone, strict=True)):
            total += len(expected)
            if Counter(by_line.get(first + number, [])) != Counter(expected):
                wrong.append(op)
    return [{"ops": len(OPS), "launches": total, "wrong": wrong}]


def many_ops() -> Workload:
    tensor = torch.zeros(16, device="cuda")

    def small_ops() -> None:
        for _ in range(SMALL_OPS):
            tensor.add_(1)

    return Workload("benchmark", "step", (WorkloadPart("small_ops", small_ops),))


def recorder() -> list[dict[str, object]]:
    """Capture with provenance against plain capture, 100,000 small ops, in turn."""
    workload = many_ops()
    plain_s, watched_s, joined_s, warm_s = [], [], [], []
    for _ in range(5):
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        torch.cuda.synchronize()
        clock = time.perf_counter()
        with torch.cuda.graph(graph, stream=stream):
            call(workload.parts[0])
        plain_s.append(time.perf_counter() - clock)
        del graph
        gc.collect()
        options = CaptureOptions(warmup_iters=1)
        session = cuda_capture.open_session(CudaDevice(), workload, options)
        clock = time.perf_counter()
        session.warm_up(quiet)
        warm_s.append(time.perf_counter() - clock)
        session.capture()
        watched_s.append(session.graphs[0].capture_ns / 1e9)
        clock = time.perf_counter()
        capture, _ = cuda_capture.assemble(session)
        joined_s.append(time.perf_counter() - clock)
        count = len(capture.graphs[0].nodes)
        known = sum(node.origin is not None for node in capture.graphs[0].nodes)
        del session, capture
        gc.collect()
    return [
        {
            "ops": SMALL_OPS,
            "nodes": count,
            "with_origin": known,
            "plain_s": median(plain_s),
            "with_provenance_s": median(watched_s),
            "ratio": median(b / a for a, b in zip(plain_s, watched_s, strict=True)),
            "recorded_warm_up_s": median(warm_s),
            "read_and_join_s": median(joined_s),
        }
    ]


BY_HAND = """
import sys, torch
sys.path.insert(0, {root!r})
from benchmarks.gpu import plain_capture
from cgtool.program.load import load
for _, graph in plain_capture(load({spec!r}, device="cuda")):
    graph.instantiate()
torch.cuda.synchronize()
"""


def whole() -> list[dict[str, object]]:
    """Whole `cgtool capture` against a script that does the same warm-ups and capture."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("mlp", "transformer", "train_step"):
            spec = str(ROOT / "samples" / f"{name}.py:build")
            script = Path(folder) / "by_hand.py"
            script.write_text(BY_HAND.format(root=str(ROOT), spec=spec))
            ours = [
                sys.executable, "-m", "cgtool.cli.app", "capture", spec,
                "-o", f"{folder}/out.cgt",
            ]  # fmt: skip
            times: dict[str, list[float]] = {"hand": [], "cgtool": []}
            for _ in range(4):
                for key, command in (("hand", [sys.executable, str(script)]), ("cgtool", ours)):
                    clock = time.perf_counter()
                    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
                    times[key].append(time.perf_counter() - clock)
            hand, tool = median(times["hand"][1:]), median(times["cgtool"][1:])
            rows.append({"sample": name, "by_hand_s": hand, "cgtool_s": tool, "ratio": tool / hand})
    return rows


FIGURES = {
    "nodes": nodes,
    "ops": ops,
    "recorder": recorder,
    "whole": whole,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", choices=[[], *FIGURES], default=[])
    chosen = parser.parse_args().figures or list(FIGURES)
    if not torch.cuda.is_available():
        sys.exit("these figures need a GPU")
    figures: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    for name in chosen:
        figures[name] = rows = FIGURES[name]()
        print(f"\n{name}")
        for row in rows:
            print("  " + "  ".join(f"{key}={_short(value)}" for key, value in row.items()))
    path = Path(os.environ.get("OUT", ".")) / "gpu-figures.json"
    path.write_text(json.dumps(figures, indent=2, default=str))
    print(f"\nwrote {path}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
