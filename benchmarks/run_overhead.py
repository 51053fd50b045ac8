"""The cost of `cgtool run`: `python benchmarks/run_overhead.py [--rounds 3] [--times] [NAME ...]`.

Each program runs by itself and under `cgtool run` in turn, in fresh processes. It times itself:
hooks that it puts on the methods of `torch.cuda.CUDAGraph`, around whatever is there already, add
up the time from the beginning of `capture_begin` to the end of `capture_end`, and of `replay`. So
the recorder is inside what is timed. `replay_us` is the median replay, `replays_ms` all of them
together: the first ones of a graph look up their line, and compete for Python with the thread that
writes captures. The first capture of a process is by itself: where the
recorder has not yet imported what only captures need, it does so there. `body` is the program
without the import of PyTorch, which takes seconds and varies by a quarter on a busy host. The whole
program is timed from outside: `program` from its start to its end, and `command` with what cgtool
does before and after. Every figure is the median of the rounds.

``--pairs`` measures in one process, where neither the host nor what is imported differs: it runs a
program again and again, every other time in ``cgtool.recording``, and compares the same captures
and replays of both kinds; the first two times do not count. With ``--replays`` all are recorded,
and every other replay of each graph goes past the counter, to the method of PyTorch's.

`start` and `import` are a Python process that imports nothing, and one that imports PyTorch; they
need no GPU. What they and the first capture take more is what a run costs once, however long the
program is. cgtool is compiled to bytecode first, as pip does when it installs it: otherwise each
process might compile it, which takes longer than the rest of its start.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import cgtool
from cgtool.model import capture_file

TIMES = "RUN_OVERHEAD_TIMES"
"""The variable that names the file for a program's own times."""


def replay() -> None:
    """A graph of one kernel, back to back."""
    import torch

    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + 1
    for _ in range(100):
        for _ in range(500):
            graph.replay()
        torch.cuda.synchronize()


def small_ops() -> None:
    """Captures of 1,000 ops of one kernel: nothing but launches."""
    import torch

    x = torch.ones(8, device="cuda")
    for _ in range(8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x
            for _ in range(1000):
                y = y + 1


def engine() -> None:
    """A decoder with a graph for each of eight batch sizes."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda().half()
    graphs = {}
    # Gradients are on: without them PyTorch runs a layer as one fused op.
    for batch in (1, 2, 4, 8, 16, 32, 48, 64):
        x = torch.zeros(batch, 32, 512, device="cuda", dtype=torch.half)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graphs[batch] = graph, x, y
    for step in range(1000):
        graphs[1 << step % 6][0].replay()
    torch.cuda.synchronize()


def callables() -> None:
    """`make_graphed_callables` in a training loop."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model: Any = nn.Sequential(
        *(nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()) for _ in range(12))
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model = torch.cuda.make_graphed_callables(model, (torch.randn(64, 512, device="cuda"),))
    for step in range(300):
        loss = model(torch.full((64, 512), step % 7 / 7, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())


def compiled() -> None:
    """`torch.compile(mode="reduce-overhead")`: training with two shapes, and inference."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()) for _ in range(12))
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    fast = torch.compile(model, mode="reduce-overhead", dynamic=False)
    for step in range(200):
        torch.compiler.cudagraph_mark_step_begin()
        loss = fast(torch.full((32 + step % 2 * 32, 512), 0.1, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.inference_mode():
        for _ in range(200):
            torch.compiler.cudagraph_mark_step_begin()
            fast(torch.ones(32, 512, device="cuda"))
    print(loss.item())


def _llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    model.generation_config.pad_token_id = 0
    return model


def compiled_llama() -> None:
    """The same with a small model of transformers'."""
    import torch

    model = _llama().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    fast = torch.compile(model, mode="reduce-overhead", dynamic=False)
    for step in range(24):
        tokens = torch.full((2 + step % 2 * 2, 64), step % 7, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        loss = fast(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(loss.item())
    model.eval()
    with torch.no_grad():
        for _ in range(24):
            torch.compiler.cudagraph_mark_step_begin()
            fast(tokens, use_cache=False)


def generate() -> None:
    """transformers: `generate` with a static cache."""
    import torch

    model = _llama()
    model.generation_config.cache_implementation = "static"
    tokens = torch.randint(1, 1024, (4, 16), device="cuda")
    for _ in range(3):
        result = model.generate(tokens, max_new_tokens=64, do_sample=False)
    print(result.sum().item())


def continuous() -> None:
    """transformers: continuous batching, which captures on a thread of its own."""
    import torch
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = _llama().to(torch.bfloat16)
    settings = GenerationConfig(max_new_tokens=32, do_sample=False, pad_token_id=0, eos_token_id=-1)
    batching = ContinuousBatchingConfig(
        use_cuda_graph=True, use_async_batching=False, num_blocks=64, max_batch_tokens=256,
        q_padding_interval_size=16, kv_padding_interval_size=256,
    )  # fmt: skip
    prompts = [[1 + (7 * row + at) % 1000 for at in range(8 + row)] for row in range(12)]
    done = model.generate_batch(
        inputs=prompts, generation_config=settings, continuous_batching_config=batching
    )
    print(len(done), sum(len(each.generated_tokens) for each in done.values()))


def vision() -> None:
    """Training of a ResNet of timm's, forward and backward in one graph."""
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(16, 3, 64, 64, device="cuda")
    target = torch.zeros(16, dtype=torch.long, device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
    for _ in range(500):
        graph.replay()
    print(loss.item())


PROGRAMS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        replay, small_ops, engine, callables, compiled, compiled_llama, generate, continuous,
        vision,
    )
}  # fmt: skip
BARE = {"start": "pass", "import": "import torch"}


class Times(NamedTuple):
    """Nanoseconds of a program."""

    captures: list[int]
    replays: list[int]
    past: list[int]
    """Of the replays that went past the counter."""
    body: int


def timed(name: str, *, past_counter: bool = False) -> Times:
    """Run a program of ``PROGRAMS``. ``past_counter``: every other replay of each graph."""
    import torch

    kind: Any = torch.cuda.CUDAGraph
    begin, end, again = before = kind.capture_begin, kind.capture_end, kind.replay
    clock = time.perf_counter_ns
    began: dict[int, int] = {}
    captures: list[int] = []
    replays: list[int] = []
    past: list[int] = []

    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
        began[id(graph)] = clock()
        begin(graph, *args, **kwargs)

    def capture_end(graph: Any) -> None:
        end(graph)
        captures.append(clock() - began[id(graph)])

    def replay(graph: Any) -> None:
        start = clock()
        again(graph)
        replays.append(clock() - start)

    counted: Any = torch._C._CUDAGraph.replay
    original = getattr(counted, "__wrapped__", counted)
    seen: defaultdict[int, int] = defaultdict(int)

    def counted_or_not(graph: Any) -> None:
        seen[id(graph)] += 1
        function, times = (counted, replays) if seen[id(graph)] % 2 else (original, past)
        start = clock()
        function(graph)
        times.append(clock() - start)

    kind.capture_begin, kind.capture_end = capture_begin, capture_end
    kind.replay = counted_or_not if past_counter else replay
    try:
        start = clock()
        PROGRAMS[name]()
        torch.cuda.synchronize()
        body_ns = clock() - start
    finally:
        kind.capture_begin, kind.capture_end, kind.replay = before
    return Times(captures, replays, past, body_ns)


def forget() -> None:
    """Free what the last run left, which a collection during a capture would, and have the next one
    compile again. Most programs compile nothing, and import no compiler."""
    gc.collect()
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def timed_in_pairs(name: str, rounds: int, folder: Path) -> None:
    """Print a row for each figure of a program, alone and recorded in this process."""
    sides: tuple[list[Times], list[Times]] = [], []
    for number in range(2 * rounds + 2):
        is_recorded = number % 2
        forget()
        recording = cgtool.recording(folder / "pair.cgt")
        with (
            recording if is_recorded else contextlib.nullcontext(),
            contextlib.redirect_stdout(None),
        ):
            times = timed(name)
        if number > 1:
            sides[is_recorded].append(times)
    columns = [list(zip(*(each.captures for each in side), strict=True)) for side in sides]
    captures = [[median(same) / 1e6 for same in side] for side in columns]
    bodies = [[each.body / 1e6 for each in side] for side in sides]
    figures = {
        "first_ms": [side[0] for side in captures if side],
        "others_ms": [sum(side[1:]) for side in captures],
        "replay_us": [median(replay for each in side for replay in each.replays) / 1e3
                      for side in sides if side[0].replays],
        "body_ms": [median(side) for side in bodies],
    }  # fmt: skip
    for figure, values in figures.items():
        if values and all(values):
            alone, ours = values
            print_row(name, figure, alone, ours, ours / alone)


def timed_past_counter(name: str, rounds: int, folder: Path) -> None:
    """Print the quartiles of the replays of a recorded program, with and without the counter."""
    runs: list[Times] = []
    for _ in range(rounds):
        forget()
        with cgtool.recording(folder / "past.cgt"), contextlib.redirect_stdout(None):
            runs.append(timed(name, past_counter=True))
    past, counted = (
        quantiles(sorted(itertools.chain.from_iterable(side)), n=4)
        for side in (map(attrgetter("past"), runs), map(attrgetter("replays"), runs))
    )
    for label, alone, ours in zip(("lower", "median", "upper"), past, counted, strict=True):
        print_row(name, f"{label}_us", alone / 1e3, ours / 1e3, ours / alone)


def print_row(name: str, figure: str, alone: float, ours: float, ratio: float) -> None:
    more = ours - alone
    print(
        f"{name:<12}{figure:<12}{alone:>11.3f}{ours:>11.3f}{more:>10.3f}{ratio:>8.3f}", flush=True
    )


def timed_by_itself(name: str) -> None:
    """Run a program of ``PROGRAMS`` and write the times of its graphs."""
    captures, replays, _, body_ns = timed(name)
    times: dict[str, float] = {"captures": len(captures), "replays": len(replays)}
    times["body_ms"] = body_ns / 1e6
    if captures:
        times["first_ms"] = captures[0] / 1e6
    if captures[1:]:
        times["others_ms"] = sum(captures[1:]) / 1e6
    if replays:
        times["replay_us"] = median(replays) / 1e3
        times["replays_ms"] = sum(replays) / 1e6
    Path(os.environ[TIMES]).write_text(json.dumps(times))


def measured(name: str, folder: Path, options: list[str] | None) -> dict[str, float]:
    """The times of one run, in a fresh process; with options of `cgtool run`, under it."""
    times = folder / "times.json"
    times.unlink(missing_ok=True)
    command = (
        [sys.executable, "-c", BARE[name]]
        if name in BARE
        else [sys.executable, str(Path(__file__).resolve()), "--run", name]
    )
    environment = {**os.environ, TIMES: str(times)}
    saved = folder / "overhead.cgt"
    if options is not None:
        ours = [sys.executable, "-m", "cgtool", "run", "-q", "-o", str(saved), *options, "--"]
        command = [*ours, *command]
    clock = time.perf_counter_ns()
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    program_ns = command_ns = time.perf_counter_ns() - clock
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.decode()[-2000:]}")
    if options is not None:
        ledger = capture_file.read(saved).ledger
        assert ledger is not None
        program_ns = ledger.wall_ns
    own = json.loads(times.read_text()) if times.exists() else {}
    return {**own, "program_ms": program_ns / 1e6, "command_ms": command_ns / 1e6}


def main() -> None:
    """Measure, and print a row for each figure of each program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {' '.join((*BARE, *PROGRAMS))}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", action="store_true", help="with `cgtool run --times`")
    parser.add_argument("--pairs", action="store_true", help="in one process")
    parser.add_argument("--replays", action="store_true", help="with and without the counter")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        timed_by_itself(arguments.run)
        return
    options = ["--times"] if arguments.times else []
    compileall.compile_dir(Path(cgtool.__file__).parent, quiet=1)
    print(f"{'program':<12}{'':<12}{'alone':>11}{'recorded':>11}{'more':>10}{'times':>8}")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.pairs or arguments.replays:
            way = timed_past_counter if arguments.replays else timed_in_pairs
            for name in arguments.names:
                way(name, arguments.rounds, Path(folder))
            return
        for name in arguments.names or (*BARE, *PROGRAMS):
            pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
            try:
                # Whatever compiles keeps what it compiled: not timed.
                measured(name, Path(folder), None)
                for _ in range(arguments.rounds):
                    alone = measured(name, Path(folder), None)
                    ours = measured(name, Path(folder), options)
                    for figure in alone:
                        pairs[figure].append((alone[figure], ours[figure]))
            except (RuntimeError, ValueError) as error:
                print(f"{name}: {error}")
            for figure, values in pairs.items():
                alone_median, ours_median = (median(side) for side in zip(*values, strict=True))
                ratio = median(ours / alone for alone, ours in values) if alone_median else 1.0
                print_row(name, figure, alone_median, ours_median, ratio)


if __name__ == "__main__":
    main()
