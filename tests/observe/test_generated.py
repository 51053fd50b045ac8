"""Launches in the code that Inductor generates lead to the user's lines, whether it is compiled now
or comes from a cache.

Inductor writes Triton for the CPU here, whose kernels are stand-ins: neither a GPU nor a compiler
is needed, and a PyTorch that writes other comments than those that are read fails the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cgtool.model.capture import Frame
from cgtool.observe.generated import Source, _File
from cgtool.torch_compat.inductor import TracedNode

MODEL = """
import torch

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 16, bias=False)
        self.weight = torch.nn.Parameter(torch.randn(16, 8))

    def forward(self, x):
        hidden = self.inner(x)  # inner
        hidden = torch.nn.functional.gelu(hidden)  # fused
        return hidden @ self.weight  # outer

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)  # loop
        return x
"""

PROGRAM = """
import json, linecache, sys, types
import torch
from torch._dynamo.utils import counters
from cgtool.observe.frames import is_generated, is_internal_file
from cgtool.observe.generated import GeneratedCode
from cgtool.torch_compat.patches import Patches
from model import Model

from torch._inductor import async_compile, compile_fx, config, utils
from torch.utils import _triton

class Kernel:
    def run(self, *args, **kwargs):
        pass

config.cpu_backend = "triton"
async_compile.AsyncCompile.triton = lambda *args, **kwargs: Kernel()
_triton.triton_hash_with_backend = lambda: "none"
# Both look for Triton once. What they must not find is there for the generated code to import.
utils.get_triton_attrs_descriptor_version()
is_internal_file("")
for name in ("triton", "triton.language"):
    sys.modules.setdefault(name, types.ModuleType(name))

def launches(generated):
    files = {}
    for code, _ in list(generated._by_code.values()):
        for start, _, line in code.co_lines():
            text = linecache.getline(code.co_filename, line or 0)
            if "extern_kernels.mm(" in text or ".run(" in text:
                assert is_generated(code.co_filename)
                source = generated.source((code, start))
                lines = (linecache.getline(frame.file, frame.line) for frame in source.frames)
                marks = [line.split("#")[-1].strip() for line in lines]
                files.setdefault(code.co_filename, {})[line] = [
                    marks, source.module, source.ops[-1]
                ]
    return [[*lines.values()] for lines in files.values()]

model, x = Model(), torch.randn(4, 8, requires_grad=True)
for run in range(2):
    with Patches() as patches:
        generated = GeneratedCode(patches)
        y = torch.compile(model)(x)
        y.backward(torch.ones_like(y))
    print(json.dumps(launches(generated)))
    torch._dynamo.reset()
print(json.dumps(counters["inductor"]))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The launches of forward and backward, when they are compiled and from the caches; and
    Inductor's counters."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "model.py").write_text(MODEL)
    (folder / "program.py").write_text(PROGRAM)
    path = os.pathsep.join(map(str, [Path.cwd(), *sys.path]))
    env = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_of_layers_in_a_loop(runs: list[Any]) -> None:
    compiled, cached, counters = runs
    assert (counters["fxgraph_cache_miss"], counters["fxgraph_cache_hit"]) == (2, 2)
    assert compiled[0] == cached[0]
    forward, backward = compiled
    calls = [
        [[line, "loop"], [path.format(layer), kind]]
        for layer in range(3)
        for line, path, kind in (
            ("inner", "layers.{}.inner", "Linear"),
            ("fused", "layers.{}", "Layer"),
            ("outer", "layers.{}", "Layer"),
        )
    ]
    assert [launch[:2] for launch in forward] == calls
    assert [launch[2] for launch in forward] == ["aten.mm", "aten.gelu", "aten.mm"] * 3
    # A matrix product has two in its backward.
    assert backward == [
        [*call, "aten.gelu_backward" if call[0][0] == "fused" else "aten.mm"]
        for call in calls[::-1]
        for _ in range(1 if call[0][0] == "fused" else 2)
    ]
    # What is cached of a backward has lines alone, and those are the same for each layer, unless
    # it computes with a node of the forward.
    assert cached[1] == [
        [lines, module if op == "aten.gelu_backward" else None, op]
        for lines, module, op in backward
    ]


def test_kernel_without_a_source_node_belongs_to_the_user_of_its_result(tmp_path: Path) -> None:
    (tmp_path / "generated.py").write_text(
        """
def partition_0(args):
    # Topologically Sorted Source Nodes: [], Original ATen: []
    stream0 = get_raw_stream(0)
    triton_poi_fused_0.run(primals_2, buf0, 48, stream=stream0)
    # Topologically Sorted Source Nodes: [z], Original ATen: [aten.mul]
    triton_poi_fused_mul_1.run(primals_1, buf1, 48, stream=stream0)
    # Topologically Sorted Source Nodes: [y], Original ATen: [aten.convolution]
    buf2 = extern_kernels.convolution(buf1, buf0, stride=(1, 1))
"""
    )
    traced = {
        name: TracedNode(name, op, f'File "model.py", line {line}, in forward', module)
        for name, op, line, module in (
            ("z", "mul", 7, ("L['self']", "Model")),
            ("y", "conv2d", 8, ("L['self']._modules['conv']", "Conv2d")),
        )
    }
    file = _File(str(tmp_path / "generated.py"), "", traced, {})
    frames = (Frame("model.py", 8, "forward"),)
    assert file.source(9) == Source(("aten.convolution",), frames, ("conv", "Conv2d"))
    assert file.source(5) == file.source(9)
    assert file.source(7).module == ("", "Model")
