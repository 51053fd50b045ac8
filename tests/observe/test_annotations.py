"""Ranges around ops, however the user's file came by the functions that open them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from cgtool.observe.annotations import watch
from cgtool.observe.ops import OpRecorder
from cgtool.program.load import load


def ranges_of(tmp_path, name, imports, body):
    """The ranges around the two ops of a function that is loaded as an entry point."""
    file = tmp_path / f"{name}.py"
    file.write_text(
        f"import torch\n{imports}\ndef function(x):\n{body}\n    return x.cos()\n"
        "def build(device):\n    return function, (torch.ones(3, device=device),)\n"
    )
    part = load(f"{file}:build", device="cpu").parts[0]
    with watch() as annotations, OpRecorder({}, annotations) as recorder:
        part.function(*part.args)
    assert annotations.current() == ()
    # record_function is an op itself.
    aten = [call for call in recorder.record.calls if call.name.startswith("aten::")]
    return [call.annotations for call in aten]


FORMS = {
    "record_function": (
        "from torch.profiler import record_function",
        "    with record_function('r'):\n        x = x.sin()",
    ),
    "nvtx_from": (
        "from torch.cuda.nvtx import range_push, range_pop",
        "    range_push('r')\n    x = x.sin()\n    range_pop()",
    ),
    "nvtx_keyword": (
        "import torch.cuda.nvtx as nvtx",
        "    nvtx.range_push(msg='r')\n    x = x.sin()\n    nvtx.range_pop()",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_range_is_recorded(form, tmp_path):
    assert ranges_of(tmp_path, f"marked_{form}", *FORMS[form]) == [("r",), ()]


def test_marks_that_are_imported_by_name_are_recorded(tmp_path):
    pytest.importorskip("torch.cuda._graph_annotations")
    ranges = ranges_of(
        tmp_path,
        "marked_kernels",
        "from torch.cuda._graph_annotations import mark_kernels",
        "    with mark_kernels('r'):\n        x = x.sin()",
    )
    assert ranges == [("r",), ()]


TRACED = """
import os, torch
from torch import _dynamo
from torch.cuda import nvtx

# PyTorch built without NVTX raises where it is traced.
vars(nvtx)["_nvtx"] = type("Nvtx", (), {"rangePushA": lambda *_: 0, "rangePop": lambda *_: 0})()

def marked(x):
    nvtx.range_push("r")
    with torch.profiler.record_function("r"):
        x = x.sin()
    nvtx.range_pop()
    return x.cos()

with_cgtool = os.fork() == 0
if with_cgtool:
    from cgtool.observe.annotations import install
    install()
else:
    assert os.wait()[1] == 0
found = torch._dynamo.explain(marked)(torch.ones(3))
print(found.graph_count, found.graph_break_count, flush=True)
"""


def test_torch_compile_sees_what_it_would_see_without_cgtool(tmp_path):
    """As many graphs, as many breaks: other graphs would be other kernels."""
    (tmp_path / "traced.py").write_text(TRACED)
    done = subprocess.run(
        [sys.executable, tmp_path / "traced.py"], capture_output=True, text=True, check=True
    )
    with_cgtool, without = done.stdout.splitlines()
    assert with_cgtool == without


PACKAGE = {
    "push": ("from nvtx import push_range, pop_range", "push_range('r')", "pop_range()"),
    "with": ("from nvtx import annotate", "with annotate('r'):", "pass"),
    "named": ("from nvtx import annotate", "with annotate(message='r', color='red'):", "pass"),
}


@pytest.mark.parametrize("form", PACKAGE)
def test_ranges_of_the_nvtx_package_are_recorded(form, tmp_path):
    pytest.importorskip("nvtx")
    imports, opening, closing = PACKAGE[form]
    inner = "        " if opening.endswith(":") else "    "
    body = f"    {opening}\n{inner}x = x.sin()\n    {closing}"
    assert ranges_of(tmp_path, f"package_{form}", imports, body) == [("r",), ()]


@pytest.mark.parametrize(("argument", "name"), [("'r'", "r"), ("", "part")])
def test_functions_that_the_nvtx_package_decorates_are_ranges(argument, name, tmp_path):
    pytest.importorskip("nvtx")
    imports = (
        "from nvtx import annotate\n"
        f"@annotate({argument})\ndef part(x):\n    return x.sin()"
    )  # fmt: skip
    ranges = ranges_of(tmp_path, f"decorated_{name}", imports, "    x = part(x)")
    assert ranges == [(name,), ()]


def test_nothing_is_recorded_unless_requested(tmp_path):
    with watch(enabled=False) as annotations, torch.profiler.record_function("r"):
        assert annotations.current() == ()
    with torch.profiler.record_function("r"):
        assert annotations.current() == ()


def test_a_watch_inside_another_leaves_that_one_as_it_was():
    with watch() as outer:
        with watch() as inner, torch.profiler.record_function("r"):
            assert inner.current() == ("r",)
            assert outer.current() == ()
        with torch.profiler.record_function("s"):
            assert outer.current() == ("s",)
