"""Where the nodes of compiled code come from: `python benchmarks/compiled_lines.py [NAME ...]`.

Each program runs under `cgtool run` twice, with an empty cache of Inductor's and with a full one.
For each graph of `torch.compile` it counts the nodes with an owner, an op, a module, a line inside
the compiled function (not the line that calls it, nor its first one), a line at which the forward
of plain eager runs any op, and one at which it runs an op of the node's. What eager runs at which
line is seen by a dispatch mode that is written here. `--show N` prints N nodes, to be read.
"""

from __future__ import annotations

import argparse
import json
import linecache
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cgtool.model import capture_file
from cgtool.model.capture import Capture
from cgtool.model.ledger import LedgerGraph

Compile = Callable[[Any], Any]


def transformer(compile_: Compile, steps: int) -> None:
    """Trained with two shapes; attention by hand and by PyTorch's function, in turn."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self, fused: bool) -> None:
            super().__init__()
            self.fused = fused
            self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 32).permute(2, 0, 3, 1, 4)
            if self.fused:
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = q @ k.transpose(-2, -1) * 32**-0.5
                weights = functional.dropout(scores.softmax(-1), 0.1, self.training)
                y = weights @ v
            return self.out(y.transpose(1, 2).reshape(x.shape))

    class Block(nn.Module):
        def __init__(self, fused: bool) -> None:
            super().__init__()
            self.attention = Attention(fused)
            self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(2))
            self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norms[0](x))
            hidden = functional.gelu(self.up(self.norms[1](x)))
            return x + self.down(hidden)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(101, 128)
            self.blocks = nn.ModuleList(Block(fused=index % 2 == 1) for index in range(4))
            self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 101)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    torch.manual_seed(0)
    model = Model().cuda()
    step = compile_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        step(torch.randint(0, 101, (2, 16 if index % 2 else 32), device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()


def vision(compile_: Compile, steps: int) -> None:
    """A model of timm's, in inference and in training."""
    import timm
    import torch

    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64, device="cuda")
    model = timm.create_model("resnet18").cuda().eval()
    step = compile_(model)
    for _ in range(steps // 2):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            step(images)
    model.train()
    for _ in range(steps // 2):
        torch.compiler.cudagraph_mark_step_begin()
        step(images).square().mean().backward()
        model.zero_grad()


def llama(compile_: Compile, steps: int) -> None:
    """A model of transformers', in inference."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    step = compile_(LlamaForCausalLM(config).cuda().eval())
    with torch.no_grad():
        for _ in range(steps):
            torch.compiler.cudagraph_mark_step_begin()
            step(input_ids=torch.zeros(2, 32, dtype=torch.long, device="cuda"), use_cache=False)


PROGRAMS: dict[str, Callable[[Compile, int], None]] = {
    program.__name__: program for program in (transformer, vision, llama)
}


def run(name: str) -> None:
    """The program as `cgtool run` sees it."""
    import torch

    def compile_(model: Any) -> Any:
        return torch.compile(model, mode="reduce-overhead", dynamic=False)

    PROGRAMS[name](compile_, 8)


def run_eagerly(name: str) -> None:
    """Print which ops run at which lines of plain eager."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    torch_folder = str(Path(torch.__file__).parent)
    lines: dict[str, set[str]] = {}

    class Lines(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            frame = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.startswith(torch_folder):
                frame = frame.f_back  # type: ignore[assignment]
            if frame is not None:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                lines.setdefault(place, set()).add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Lines():
        PROGRAMS[name](lambda model: model, 2)
    sys.stdout.write("\n" + json.dumps({place: sorted(ops) for place, ops in lines.items()}))


EagerOps = dict[str, list[str]]


def shares(capture: Capture, entry: LedgerGraph, eager: EagerOps, shown: list[str]) -> list[int]:
    """How many nodes, and how many have each fact, in the order of the heading."""
    assert entry.graph is not None
    sums = [0] * 7
    for node in capture.graphs[entry.graph].nodes:
        origin = None if node.origin is None else capture.origins[node.origin]
        frames = [] if origin is None else [capture.frames[index] for index in origin.frames]
        callers = {capture.frames[index] for index in entry.frames}
        frame = next((frame for frame in frames if frame not in callers), None)
        text = "" if frame is None else linecache.getline(frame.file, frame.line).strip()
        inside = bool(text) and not text.startswith(("def ", "@"))
        ops = eager.get(f"{frame.file}:{frame.line}", []) if frame is not None else []
        op = (origin.op or "") if origin is not None else ""
        own = {name.split(".")[0] for name in op.removeprefix("aten::").split("+")}
        sums = [
            total + bool(fact)
            for total, fact in zip(
                sums,
                (
                    True,
                    entry.owner,
                    op,
                    origin is not None and origin.module is not None,
                    inside,
                    inside and ops,
                    inside and own & {*ops},
                ),
                strict=True,
            )
        ]
        kernel = "" if node.kernel is None else capture.functions[node.kernel.function].name
        module = None if origin is None else origin.module
        shown.append(
            f"{entry.key:14} {(kernel or node.type)[:44]:44} {op[:60]}\n    {module}: {text}"
        )
    return sums


def measure(name: str, folder: Path, show: int) -> None:
    """Run a program and print its table."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache-{name}")}
    this = [sys.executable, __file__]
    plain = subprocess.Popen([*this, "--eager", name], stdout=subprocess.PIPE, text=True)
    eager: EagerOps = {}
    for cache in ("empty", "full"):
        saved = folder / f"{name}-{cache}.cgt"
        command = [sys.executable, "-m", "cgtool", "run", "-q", "-o", str(saved), "--", *this]
        subprocess.run([*command, "--run", name], env=environment, check=True)
        eager = eager or json.loads(plain.communicate()[0].splitlines()[-1])
        capture = capture_file.read(saved)
        assert capture.ledger is not None
        for lost in capture.ledger.lost:
            print("lost:", lost)
        shown: list[str] = []
        total = [0] * 7
        print(f"{name}, {cache} cache: nodes, owner, op, module, line, eager's line, its op there")
        for entry in capture.ledger.graphs:
            if entry.graph is not None and capture.graphs[entry.graph].nodes:
                row = shares(capture, entry, eager, shown)
                total = [sum(pair) for pair in zip(total, row, strict=True)]
                print(f"  {entry.key:16}", *(f"{count:6}" for count in row))
        print(f"  {'all':16}", *(f"{count:6}" for count in total))
        random.Random(0).shuffle(shown)
        print("\n".join(shown[:show]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS, []], default=[])
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--run", choices=PROGRAMS)
    parser.add_argument("--eager", choices=PROGRAMS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run)
    elif arguments.eager:
        run_eagerly(arguments.eager)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name in arguments.names or PROGRAMS:
                measure(name, Path(folder), arguments.show)


if __name__ == "__main__":
    main()
