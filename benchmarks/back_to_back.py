"""`bench` and `profile` compared with 50 replays in a loop: `benchmarks/back_to_back.py [NAME...]`.

Nothing of cgtool is in the loop: 50 replays between one pair of CUDA events, in a loop that has
run for 20 ms. `bench` gets its figure from fewer replays behind others. The loop replays the graphs
that `bench` timed, since two captures of the same code differ by half a percent (their memory is
elsewhere); one that is captured by hand with plain PyTorch is shown too.

`off` is `bench` less the loop, and LIMIT is the most that it should be. The other percentages are
also of the loop: one replay timed as the fifty are, the wall time of a loop of half a second
without any event, the sum of the graphs in `profile`, and the capture by hand. The last one
compares eager in `bench` with the wall time of a plain loop. NAME is a model of this file or of
`model_zoo.py`. It needs a GPU. Each model has a process of its own.

`--against` does the same for `bench NAME --against NAME2`, with each two neighbors of the list:
the loop is run on every graph that it captures, right after its own rounds.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import model_zoo  # noqa: E402
from gpu import plain_capture  # noqa: E402

REPLAYS = 50
ROUNDS = 15
LIMIT = 0.003
EAGER_SECONDS = 0.3
REPLAY_SECONDS = 0.5
SECONDS = 400
"""For one model, with its imports and its wait for the others."""
PAIR_SECONDS = 12.0
AT_ONCE = 4
"""Processes that import while one of them measures."""
BEFORE_MS = 20.0
"""How long the loop runs before it is timed: the clock of a GPU that was idle is higher."""

# --- models of more than a few small kernels, for replays of 0.5 to 6 ms


def language_model(model, device, batch=4, length=128):
    model.config.use_cache = False
    model = model.to(device).train()
    ids = torch.randint(3, 1000, (batch, length), device=device)
    return (lambda ids: model(input_ids=ids, labels=ids).loss), (ids,)


def bert_base(device):
    from transformers import BertConfig, BertForMaskedLM

    return language_model(BertForMaskedLM(BertConfig(vocab_size=1000)), device)


def gpt2_small(device):
    from transformers import GPT2Config, GPT2LMHeadModel

    return language_model(GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=128)), device)


def llama_24_layers(device):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=24,
        num_attention_heads=8,
    )  # fmt: skip
    return language_model(LlamaForCausalLM(config), device, batch=1, length=64)


def qwen3_inference(device):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to(device).eval()
    model.config.use_cache = False

    def logits(ids):
        with torch.no_grad():
            return model(input_ids=ids).logits

    return logits, (torch.randint(3, 1000, (1, 32), device=device),)


def convnext_tiny(device):
    import timm

    return timm.create_model("convnext_tiny").to(device), (model_zoo.images(device, 128),)


def efficientnet_training(device):
    import timm

    return timm.create_model("efficientnet_b0").to(device), (model_zoo.images(device, 128),)


def resnet50_training(device):
    from torchvision.models import resnet50

    return resnet50().to(device), (torch.randn(8, 3, 128, 128, device=device),)


LARGER = (
    bert_base, gpt2_small, llama_24_layers, qwen3_inference, convnext_tiny, efficientnet_training,
    resnet50_training,
)  # fmt: skip
SMALL = (
    "gin", "bert_padded", "tv_vit", "llama", "t5", "training_step", "tv_resnet50", "timm_mixer",
)  # fmt: skip
PACKAGES = ("torch_geometric", "transformers", "timm", "torchvision")


def specs(wanted: Sequence[str]) -> list[str]:
    """ENTRY of every model that is wanted and installed, the short ones first."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}: their models are left out")
    without = {name for package in missing for name in model_zoo.PACKAGES[package]}
    names = wanted or [name for name in SMALL if name not in without]
    larger = {model.__name__ for model in LARGER}
    if not wanted and not missing:
        names = [*names, *(model.__name__ for model in LARGER)]
    return [
        f"{HERE / ('back_to_back' if name in larger else 'model_zoo')}.py:{name}" for name in names
    ]


# --- by hand


def loop_ns(replays: Sequence[Callable[[], None]], count: int) -> float:
    """Device time of one iteration of so many, in a loop that has run for a while. The driver's
    queue holds them all, so that the host is ahead of the device if it launches faster at all."""

    def run(iterations: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(iterations):
            for replay in replays:
                replay()
        end.record()
        return start, end

    torch.cuda.synchronize()
    start, end = run(3)
    torch.cuda.synchronize()
    run(max(2, round(3 * BEFORE_MS / start.elapsed_time(end))))
    start, end = run(count)
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e6 / count


def wall_ns(iterate: Callable[[], None], seconds: float) -> float:
    """Wall time of one iteration of a loop that never waits."""
    for _ in range(3):
        iterate()
    torch.cuda.synchronize()
    start, count = time.perf_counter_ns(), 0
    while time.perf_counter_ns() - start < seconds * 1e9:
        iterate()
        count += 1
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / count


# --- by cgtool, and both


def row_of(spec: str) -> dict[str, Any]:
    """One model: `bench` and the loop on the same graphs, in turn."""
    from cgtool.analysis.timing.gaps import own_time
    from cgtool.devices.cuda import bench, profile
    from cgtool.devices.cuda.capture import prepare, time_launches
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.model.measurements import whole
    from cgtool.model.options import BenchOptions, CaptureOptions
    from cgtool.program.load import load

    def quiet(_text: str) -> None: ...

    session = prepare(CudaDevice(), load(spec, device="cuda"), CaptureOptions(seed=0), quiet)
    time_launches(session)
    phases = bench.sides_of(session)
    phase = whole(phases)
    eager, replay = phases[phase]
    graphs = [graph.graph.replay for graph in session.graphs]
    options = BenchOptions(rounds=ROUNDS, max_seconds=10.0)
    fifty, single = [], []
    measured = bench.measure(session, {phase: [eager, replay]}, options, quiet)
    with torch.cuda.stream(session.stream):
        for _ in range(5):
            fifty.append(loop_ns(graphs, REPLAYS))
            single += [loop_ns(graphs, 1) for _ in range(9)]
            # The replays of `bench` once more, between the loops.
            for _ in range(3):
                replay.measure(session.device.index)
        by_hand = wall_ns(eager.once, EAGER_SECONDS)
        wall = wall_ns(replay.once, REPLAY_SECONDS)
    profiled = profile._times(session, [None] * len(graphs), 20)
    alone = sum(own_time(times) or 0.0 for times in profiled)
    row = {
        "model": spec.rpartition(":")[2],
        "nodes": sum(graph.node_count() for graph in session.graphs),
        "phase": phase,
        "bench_ns": median(replay.device_ns),
        "loop_ns": median(fifty),
        "single_ns": median(single),
        "wall_ns": wall,
        "profile_ns": alone,
        "launch_ns": sum(graph.typical_launch_ns for graph in session.graphs),
        "iterations": measured.samples[1].iterations,
        "eager_ns": median(eager.device_ns),
        "eager_loop_ns": by_hand,
    }
    row["off"] = row["bench_ns"] / row["loop_ns"] - 1
    # Beside the others: memory that came back is slower.
    workload = load(spec, device="cuda")
    captured = [graph for _, graph in plain_capture(workload)]
    for graph in captured:
        graph.instantiate()
    row["by_hand_ns"] = median(
        loop_ns([graph.replay for graph in captured], REPLAYS) for _ in range(5)
    )
    return row


def pair_of(spec: str, against: str) -> dict[str, Any]:
    """Two models: `bench --against` and the loop on the same graphs, in turn."""
    from functools import partial

    from cgtool.devices.cuda import bench, pairs
    from cgtool.devices.cuda.device import CudaDevice
    from cgtool.model.options import BenchOptions, CaptureOptions
    from cgtool.program.load import load

    loops: dict[str, list[float]] = {"replay": [], "against": []}

    class WithLoop(bench.Side):
        def measure(self, device: int) -> None:
            super().measure(device)
            loops[self.name].append(loop_ns([self.once], REPLAYS))

    pairs.Side = WithLoop
    entries = tuple(
        pairs.Entry(name, partial(load, of, device="cuda"), CaptureOptions(seed=0))
        for name, of in (("replay", spec), ("against", against))
    )
    options = BenchOptions(max_seconds=PAIR_SECONDS, precision=0.0)
    pairs.measure(entries, CudaDevice(), options, [], lambda _text: None)
    row: dict[str, Any] = {
        "model": " against ".join(name.rpartition(":")[2] for name in (spec, against))
    }
    for entry in entries:
        # The first capture of each is left out, as `bench` leaves it out.
        row |= {
            f"{entry.name}_ns": median(entry.device_ns),
            f"{entry.name}_loop_ns": median(loops[entry.name][-len(entry.device_ns) :]),
        }
    row["pairs"] = len(entries[0].by_capture())
    off = [row[f"{name}_ns"] / row[f"{name}_loop_ns"] - 1 for name in loops]
    row["replay_off"], row["against_off"] = off
    row["off"] = (1 + off[0]) / (1 + off[1]) - 1
    return row


def measure_one(spec: str, lock: Path) -> None:
    """Print the row of one model as JSON, or why there is none. The GPU is this process's own."""
    for package in PACKAGES:
        with suppress(ImportError):
            importlib.import_module(package)
    from cgtool.devices.cuda import bench

    # Eager on a noisy host never gets steady.
    bench.STEADY_SECONDS = 1.0
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            row: Any = pair_of(*spec.split()) if " " in spec else row_of(spec)
        except Exception as error:
            # One model of a library that changed does not end the others.
            row = f"{type(error).__name__}: {error}"
        print(f"\n{json.dumps(row)}", flush=True)
    # Graphs that are half freed are nobody's business anymore.
    os._exit(0)


def result_of(spec: str, lock: Path) -> dict[str, Any] | str:
    """Of one model, from a process of its own."""
    command = [sys.executable, __file__, "--one", spec, "--lock", str(lock)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        return json.loads(run.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"no result after {SECONDS} s"
    except (ValueError, IndexError):
        return f"exit code {run.returncode}: {run.stderr[-300:]}"


COLUMNS = ("bench_ns", "loop_ns", "single_ns", "wall_ns", "profile_ns", "by_hand_ns")


def text_of(row: dict[str, Any]) -> str:
    """A line: microseconds, and what differs from the loop in percent."""
    if "pairs" in row:
        times = [row[f"{name}_ns"] / 1e3 for name in ("replay", "against")]
        off = [row[name] for name in ("replay_off", "against_off", "off")]
        return f"{row['model']:36} {row['pairs']:>5}" + "".join(
            [f"{time_us:>10.1f}" for time_us in times] + [f"{part:>+9.2%}" for part in off]
        )
    loop = row["loop_ns"]
    cells = [
        f"{row['model']:22} {row['nodes']:>5} {row['bench_ns'] / 1e3:>9.1f} {loop / 1e3:>9.1f}"
    ]
    cells += [f"{row[name] / loop - 1:>+8.2%}" for name in COLUMNS if name != "loop_ns"]
    eager = row["eager_ns"] / row["eager_loop_ns"] - 1
    cells.append(f"{row['launch_ns'] / 1e3:>9.1f} {row['eager_ns'] / 1e3:>9.1f} {eager:>+8.1%}")
    return " ".join(cells)


HEADING = (
    f"{'model':22} {'nodes':>5} {'bench us':>9} {'loop us':>9} {'off':>8} {'single':>8} "
    f"{'wall':>8} {'profile':>8} {'by hand':>8} {'launch us':>9} {'eager us':>9} {'eager':>8}"
)

PAIRS_HEADING = f"{'model':36} {'pairs':>5}" + "".join(
    [f"{name:>10}" for name in ("us", "other us")]
    + [f"{name:>9}" for name in ("off", "other", "ratio")]
)


def main() -> int:
    """1 when a figure of `bench` is further off than LIMIT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--against", action="store_true", help="time pairs of models")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure_one(arguments.one, arguments.lock)
    print(PAIRS_HEADING if arguments.against else HEADING)
    rows = []
    chosen = specs(arguments.names)
    if arguments.against:
        chosen = [" ".join(two) for two in pairwise(chosen)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(result_of, chosen, [Path(folder) / "lock"] * len(chosen))
        for spec, row in zip(chosen, results, strict=True):
            if isinstance(row, str):
                print(f"{spec.rpartition(':')[2]:22} {row}", flush=True)
            else:
                rows.append(row)
                print(text_of(row), flush=True)
    name = "pairs.json" if arguments.against else "back-to-back.json"
    (arguments.out / name).write_text(json.dumps(rows, indent=1))
    within = sum(abs(row["off"]) <= LIMIT for row in rows)
    print(f"\n{within} of {len(rows)} models within {LIMIT:.1%} of {REPLAYS} replays back to back")
    return 0 if rows and within == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
