"""Ops are watched beside compiled code, and nothing is compiled again for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json
import torch
from torch._dynamo.utils import counters
from cgtool.observe.frames import is_generated
from cgtool.torch_compat import op_key
from cgtool.observe.compiled_code import pause_in_compiled_code
from cgtool.torch_compat.patches import Patches

def with_a_break(x, w):
    y = x @ w
    torch._dynamo.graph_break()
    return y @ w

def late(x, w):
    return (x @ w) @ w

torch.manual_seed(0)
x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
compiled = torch.compile(with_a_break)
for _ in range(2):
    compiled(x, w).backward(torch.ones(4, 4))
print(json.dumps(counters["frames"]))

names = []

def observe(op, args, kwargs, run, caller):
    names.append((op._schema.name, caller is not None and is_generated(caller.f_code.co_filename)))
    return run(*args, **kwargs)

with Patches() as patches:
    pause_in_compiled_code(patches, op_key.paused, generated=False)
    with op_key.watch(observe):
        y = compiled(x, w)
        z = y + 1
        z.backward(torch.ones(4, 4))
        z.detach() * 2
print(json.dumps(counters["frames"]))
print(json.dumps(names))

with Patches() as patches:
    pause_in_compiled_code(patches, op_key.paused, generated=False)
    with op_key.watch(observe):
        torch.compile(late)(x, w).backward(torch.ones(4, 4))  # fake tensors fail under the key
print(json.dumps(counters["frames"]))
"""


def test_guards_and_compilers_see_no_key(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join(map(str, [Path.cwd(), *sys.path]))
    env = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after, names, at_last = map(json.loads, done.stdout.splitlines())
    assert after == before
    assert [name for name, generated in names if generated] == ["aten::mm"] * 6
    beside = [name for name, generated in names if not generated]
    assert beside[0] == "aten::add"
    assert beside[-1] == "aten::mul"
    assert at_last["ok"] == before["ok"] + 1
