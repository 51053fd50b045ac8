"""What the machine cannot do ends with its own exit code, not as a fault of cgtool's."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("cuda.bindings.driver")

import torch

from cgtool.devices.cuda.session import not_instantiated

NO_BINDINGS = """
import sys
sys.modules["cuda.bindings.driver"] = None
from cgtool.model.failure import CgtoolError
try:
    import cgtool.devices.cuda.capture
except CgtoolError as error:
    print(error.failure.exit_code, error.failure.message, error.failure.fix)
"""


def test_without_bindings_the_machine_cannot():
    done = subprocess.run(
        [sys.executable, "-c", NO_BINDINGS], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("3 ")
    assert "pip install 'cuda-bindings" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), 3),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), 3),
        (RuntimeError("cuGraphUpload: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"), 3),
        (RuntimeError("cuGraphUpload: CUDA_ERROR_NOT_SUPPORTED (operation not supported)"), 4),
    ],
)
def test_a_graph_that_cannot_be_instantiated(error, code):
    failure = not_instantiated("forward", error).failure
    assert failure.exit_code == code
    assert "forward was captured" in failure.message
    assert failure.why == str(error).splitlines()[0]
