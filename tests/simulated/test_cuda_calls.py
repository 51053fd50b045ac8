"""The simulated device serves the functions of ``torch.cuda`` and ``torch.accelerator``."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from cgtool.devices.simulated.cudagraph import check_script
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.failure import CgtoolError
from tests.forked_workers import in_fork

EVERY_CALL = Path(__file__).parent / "every_call.py"
NOT_SERVED = {
    "torch.cuda.cudart().cudaHostRegister(0, 8, 0)": "pins memory by its address",
    "torch.cuda.Event(interprocess=True).ipc_handle()": "there is no other process",
    "captured().raw_cuda_graph_exec()": "the driver's handle of a graph",
}
"""Calls that fail on the simulated device, and why."""
_CAPTURED = (
    "import torch\n\ndef captured():\n    graph = torch.cuda.CUDAGraph()\n"
    "    with torch.cuda.graph(graph):\n        torch.ones(2, device='cuda').add_(1)\n"
    "    return graph\n\n"
)


def _checked(path: Path) -> tuple[list[str], str, str]:
    """The codes of the findings, what the script has printed, and why it has failed."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            findings, _ = check_script(str(path), (), lambda _phase: None, ScriptDevice())
    except CgtoolError as error:
        return [], printed.getvalue(), error.failure.message
    return [finding.code for finding in findings], printed.getvalue(), ""


@pytest.fixture
def check(tmp_path: Path):
    """A script becomes the ``__main__`` of its process, which ends with it."""

    def check(source: str) -> tuple[list[str], str, str]:
        path = tmp_path / "script.py"
        path.write_text(source)
        return in_fork(_checked, path, timeout=120)

    return check


def test_every_documented_call_is_served(check) -> None:
    codes, printed, failure = check(EVERY_CALL.read_text())
    assert (codes, failure) == ([], "")
    calls, failures = json.loads(printed.splitlines()[-1])
    assert failures == {}
    assert calls > 150


@pytest.mark.parametrize("call", NOT_SERVED)
def test_a_call_that_is_not_served_fails(check, call: str) -> None:
    assert check(f"{_CAPTURED}{call}\n")[2]


@pytest.mark.parametrize("call", ["current_stream(stream=1)", "get_device_name(device=5)"])
def test_a_wrong_call_raises_what_pytorch_raises(check, call: str) -> None:
    _, _, failure = check(f"{_CAPTURED}captured().replay()\ntorch.cuda.{call}\n")
    assert re.search("raised (TypeError|AssertionError)", failure)


def test_inference_tensors_and_a_forward_that_returns_nothing(check) -> None:
    source = (
        "import torch\n\nclass Adds(torch.nn.Module):\n    def forward(self, x):\n"
        "        x.add_(1)\n\nmodel = Adds()\nwith torch.inference_mode():\n"
        "    x = torch.ones(4, device='cuda')\n    model(x)\n    graph = torch.cuda.CUDAGraph()\n"
        "    with torch.cuda.graph(graph):\n        model(x)\n    graph.replay()\n"
        "    assert x.tolist() == [3.0] * 4\n"
    )
    codes, _, failure = check(source)
    assert (codes, failure) == ([], "")


def test_the_default_generator_draws_in_a_graph(check) -> None:
    source = (
        "import torch\n\ngenerator = torch.cuda.default_generators[0]\n"
        "generator.manual_seed(seed=3)\nfirst = torch.rand(3, device='cuda')\n"
        "torch.cuda.manual_seed(seed=3)\n"
        "assert torch.equal(first, torch.rand(3, device='cuda', generator=generator))\n"
        "graph = torch.cuda.CUDAGraph()\ngraph.register_generator_state(generator)\n"
        "with torch.cuda.graph(graph):\n"
        "    y = torch.empty(3, device='cuda').normal_(generator=generator)\n"
        "graph.replay()\nprint(y.clone())\ngraph.replay()\nprint(y.clone())\n"
    )
    codes, _, failure = check(source)
    assert (codes, failure) == ([], "")


def test_autocast_of_the_gpu_is_reported_as_such(check) -> None:
    source = (
        "import torch\n\nx = torch.ones(2, 2, device='cuda')\nx @ x\n"
        "with torch.amp.autocast('cuda', dtype=torch.bfloat16, cache_enabled=False):\n"
        "    assert torch.is_autocast_enabled('cuda') and torch.is_autocast_enabled()\n"
        "    assert torch.get_autocast_dtype('cuda') is torch.bfloat16\n"
        "    graph = torch.cuda.CUDAGraph()\n    with torch.cuda.graph(graph):\n"
        "        y = x @ x\n    assert y.dtype is torch.bfloat16\n"
        "    with torch.autocast('cuda', enabled=False):\n"
        "        assert (x @ x).dtype is torch.float32\n"
        "graph.replay()\nassert (x @ x).dtype is torch.float32\n"
        "with torch.autocast('cuda'):\n    assert (x @ x).dtype is torch.float16\n"
        "with torch.autocast('cpu'):\n"
        "    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16\n"
    )
    codes, _, failure = check(source)
    assert (codes, failure) == ([], "")
