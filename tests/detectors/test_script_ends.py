"""How a script may end, and what is said of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgtool.detectors.script import capture_misuse
from cgtool.devices.simulated.cudagraph import check_script
from cgtool.devices.simulated.script_device import ScriptDevice
from cgtool.model.failure import CgtoolError


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    kept = sys.modules["__main__"], sys.argv, list(sys.path), Path.cwd()
    yield
    sys.modules["__main__"], sys.argv, sys.path[:], folder = kept
    sys.modules.pop("beside", None)
    os.chdir(folder)


_CAPTURE = (
    "import torch\nx = torch.ones(2, device='cuda')\ng = torch.cuda.CUDAGraph()\n"
    "with torch.cuda.graph(g):\n    y = x + 1\n"
)


def _check(folder: Path, text: str, *arguments: str) -> tuple[list[str], tuple[str, ...]]:
    path = folder / "one.py"
    path.write_text(text)
    findings, looked = check_script(str(path), arguments, lambda _phase: None, ScriptDevice())
    return [finding.code for finding in findings], looked


def _failure(folder: Path, text: str) -> CgtoolError:
    with pytest.raises(CgtoolError) as caught:
        _check(folder, text)
    return caught.value


def test_arguments_name_and_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    codes, _ = _check(
        tmp_path,
        f"{_CAPTURE}import sys\nassert sys.argv[1:] == ['--steps', '3'], sys.argv\n"
        "assert __name__ == '__main__'\nimport beside\n",
        "--steps",
        "3",
    )
    assert codes == []


def test_what_an_import_in_a_capture_runs_is_not_the_captures(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(
        "import random\n\ndef drawn():\n    return random.random()\n\nSCALE = drawn()\n"
    )
    codes, _ = _check(
        tmp_path,
        "import torch\nx = torch.ones(2, device='cuda')\ng = torch.cuda.CUDAGraph()\n"
        "def step():\n    import beside\n    return x * beside.SCALE\n"
        "with torch.cuda.graph(g):\n    y = step()\n"
        "g.replay()\n",
    )
    assert codes == []


def test_what_was_looked_at(tmp_path: Path) -> None:
    _, looked = _check(
        tmp_path,
        f"{_CAPTURE}g.replay()\ng.replay()\n",
    )
    assert looked == (
        "the script (1 capture, 2 replays)",
        "the code of 1 graph, run again as replays began",
    )


def test_an_exception_of_the_script_is_a_failure_with_its_line(tmp_path: Path) -> None:
    failure = _failure(tmp_path, "x = 1\nraise ValueError('no such file')\n").failure
    assert failure.exit_code == 4
    assert "ValueError: no such file" in failure.message
    assert failure.frames[0].line == 2


def test_findings_come_with_the_failure(tmp_path: Path) -> None:
    failure = _failure(
        tmp_path,
        "import torch\nx = torch.ones(2, device='cuda')\ng = torch.cuda.CUDAGraph()\n"
        "try:\n    with torch.cuda.graph(g):\n        x.sum().item()\n"
        "except RuntimeError:\n    pass\nraise ValueError\n",
    ).failure
    assert [finding.code for finding in failure.findings] == ["sync-item"]


def test_an_exception_that_a_finding_explains_is_not_a_failure(tmp_path: Path) -> None:
    codes, looked = _check(
        tmp_path,
        "import torch\nx = torch.ones(2, device='cuda')\ng = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g):\n    x.sum().item()\n",
    )
    assert codes == ["sync-item"]
    assert "AcceleratorError" in looked[-1] or "RuntimeError" in looked[-1]


def test_an_exception_in_a_capture_is_a_failure_with_its_line(tmp_path: Path) -> None:
    failure = _failure(tmp_path, _CAPTURE + "    {}['hidden']\n").failure
    assert failure.exit_code == 4
    assert "KeyError: 'hidden'" in failure.message
    assert failure.frames[0].line == 6


def test_a_capture_in_an_except_block(tmp_path: Path) -> None:
    capture = "".join(f"    {line}\n" for line in _CAPTURE.splitlines())
    codes, _ = _check(
        tmp_path, f"try:\n    raise KeyError\nexcept KeyError:\n{capture}    print(y.tolist())\n"
    )
    assert codes == ["capture-does-not-execute"]


def test_a_script_that_captures_nothing_was_not_checked(tmp_path: Path) -> None:
    failure = _failure(tmp_path, "import torch\ntorch.ones(2, device='cuda').relu()\n").failure
    assert failure.exit_code == 5
    assert "captured no CUDA graph" in failure.message
    assert "one.py:NAME" in failure.fix


@pytest.mark.parametrize("code", ["0", "None", ""])
def test_exit_without_an_error(code: str, tmp_path: Path) -> None:
    codes, looked = _check(tmp_path, f"{_CAPTURE}import sys\nsys.exit({code})\n")
    assert codes == []
    assert len(looked) == 1


def test_exit_with_an_error_is_a_failure(tmp_path: Path) -> None:
    failure = _failure(tmp_path, f"{_CAPTURE}import sys\nsys.exit('no data')\n").failure
    assert failure.exit_code == 4
    assert "sys.exit('no data')" in failure.message
    assert failure.frames[0].line == 7


def test_invalid_arguments_are_a_failure(tmp_path: Path) -> None:
    failure = _failure(
        tmp_path,
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--steps', required=True)\nparser.parse_args()\n",
    ).failure
    assert failure.exit_code == 4
    assert failure.frames[0].line == 4
    assert "cgtool check OPTIONS" in failure.fix and "ARGS" in failure.fix


def test_exit_because_of_what_a_finding_explains(tmp_path: Path) -> None:
    refused = _CAPTURE.replace("x + 1", "x.sum().item()")
    handled = "".join(f"    {line}\n" for line in refused.splitlines())
    codes, looked = _check(
        tmp_path, f"import sys\ntry:\n{handled}except RuntimeError:\n    sys.exit(3)\n"
    )
    assert codes == ["sync-item"]
    assert looked[-1] == "it ended with sys.exit(3)"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CgtoolError) as caught:
        check_script(str(tmp_path / "none.py"), (), lambda _phase: None, ScriptDevice())
    assert caught.value.failure.exit_code == 2


def test_a_file_that_does_not_compile(tmp_path: Path) -> None:
    failure = _failure(tmp_path, "x = (\n").failure
    assert failure.exit_code == 4
    assert "SyntaxError" in failure.message


def test_a_bug_in_a_detector_is_not_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_misuse, "disabled_caching", None)
    with pytest.raises(TypeError, match="NoneType"):
        _check(
            tmp_path,
            "import torch\ng = torch.cuda.CUDAGraph()\n"
            "with torch.cuda.stream(torch.cuda.Stream()):\n    g.capture_begin()\n",
        )
    assert sys.getprofile() is None


def _patched_owners() -> list[dict[str, object]]:
    import ctypes
    import threading

    import torch

    owners = (
        torch, torch.cuda, torch.cuda.graphs, torch.cuda.Stream, torch.cuda.Event, torch.autograd,
        torch.autocast, torch.nn.Module, torch.optim.Optimizer, torch.distributed,
        torch.distributed.Work, threading.Thread, ctypes.CDLL,
    )  # fmt: skip
    return [dict(vars(owner)) for owner in owners]


def test_everything_that_is_patched_is_restored(tmp_path: Path) -> None:
    source = _CAPTURE
    _check(tmp_path, source)  # imports what is imported at the first use
    before = _patched_owners()
    _check(tmp_path, source)
    for own_before, own_after in zip(before, _patched_owners(), strict=True):
        assert own_after.keys() == own_before.keys()
        changed = [name for name in own_before if own_after[name] is not own_before[name]]
        assert changed == []


def test_what_the_simulated_device_has_not_is_one_sentence(tmp_path: Path) -> None:
    call = "torch.cuda.cudart().cudaHostRegister(0, 8, 0)"
    failure = _failure(tmp_path, f"import torch\n\n{call}\n").failure
    assert failure.exit_code == 4
    assert "cudaHostRegister() has no counterpart" in failure.message
    assert failure.frames[0].line == 3


def test_a_tensor_at_an_address_has_no_counterpart(tmp_path: Path) -> None:
    call = "torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata({}, None)"
    failure = _failure(tmp_path, f"import torch\n\n{call}\n").failure
    assert "has no counterpart on the simulated device" in failure.message
    assert failure.frames[0].line == 3


def test_what_was_found_before_a_refusal_is_not_its_code(tmp_path: Path) -> None:
    """The command shows the findings of a failure of this phase as what was found before."""
    refused = "torch.cuda.cudart().cudaHostRegister(0, 8, 0)"
    failure = _failure(tmp_path, f"{_CAPTURE}print(y.sum().item())\n{refused}\n").failure
    assert [each.code for each in failure.findings] == ["capture-does-not-execute"]
    assert failure.phase == "script"


_MATRIX = """import torch
a = torch.randn(64, 64, device="cuda")
def capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = a @ a
    return graph, y
print((a @ a).sum().item())
first, y = capture()
first.replay()
"""


@pytest.mark.parametrize("frees", [True, False])
@pytest.mark.parametrize(
    ("rest", "shares"),
    [
        ("second, z = capture()\nfirst.reset()\nsecond.replay()", True),
        ("second, z = capture()\nfirst.reset()\nthird, z = capture()\nthird.replay()", False),
        ("del first\nsecond, z = capture()\nsecond.replay()", False),
        ("second, z = capture()\nsecond.replay()\nfirst.reset()", False),
    ],
)
def test_only_replays_after_the_reset_of_another_graph_lack_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str, shares: bool, frees: bool
) -> None:
    monkeypatch.setattr(ScriptDevice, "reset_frees_workspaces", lambda _device: frees)
    codes, _ = _check(tmp_path, f"{_MATRIX}{rest}\ntorch.cuda.synchronize()\n")
    assert ("same-stream-cublas-workspace" in codes) == (shares and frees)


@pytest.mark.parametrize("stream", ["None", "torch.cuda.Stream()"])
def test_the_order_of_captures_matters_on_one_stream(tmp_path: Path, stream: str) -> None:
    codes, _ = _check(
        tmp_path,
        "import torch\npool, kept = torch.cuda.graph_pool_handle(), []\n"
        "for rows in (4096, 8192, 16384, 32768):\n"
        "    x = torch.randn(rows, 1024, device='cuda')\n"
        "    graph = torch.cuda.CUDAGraph()\n"
        f"    with torch.cuda.graph(graph, pool, {stream}):\n"
        "        y = (x * 2 + 1).relu().sum()\n"
        "    kept.append((graph, x, y))\n"
        "for graph, *_ in kept:\n    graph.replay()\ntorch.cuda.synchronize()\n",
    )
    assert ("capture-order-wastes-pool" in codes) == (stream == "None")


def test_running_captured_code_again_leaves_names_and_objects_as_they_are(tmp_path: Path) -> None:
    codes, _ = _check(
        tmp_path,
        "import gc, torch, weakref\nclass Scale:\n    value = 2.0\n"
        "scale, x = Scale(), torch.ones(4, device='cuda')\ng = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g):\n    y = (lambda t: t * scale.value)(x)\n"
        "other = Scale()\nfirst, scale = scale, other\ng.replay()\nassert scale is other\n"
        "kept = weakref.ref(first)\ndel first, scale\ngc.collect()\nassert kept() is None\n",
    )
    assert codes == []
