"""Each rule of ``op_rules`` is one that a GPU confirms: it has an entry in the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cgtool.detectors.op_rules import OPS
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.devices.simulated.session import prepare
from cgtool.model.failure import CgtoolError
from cgtool.model.options import CaptureOptions
from cgtool.program.load import load
from tests.corpus.catalog import entries

_TESTING = str(Path(torch.__file__).parent / "testing" / "_internal" / "jit_utils.py")

ENTRIES = [entry for entry in entries() if entry.theme == "refused_ops"]


def refusal(entry):
    """What a capture of an entry is refused for; None if it is captured."""
    with SimulatedDevice("test").active() as device:
        workload = load(f"{entry.file}:{entry.name}", device="cuda")
        try:
            prepare(device, workload, CaptureOptions(), lambda _text: None)
        except CgtoolError as error:
            return error.failure
    return None


def test_rules_and_entries_belong_together():
    subjects = {rule.subject for rule in OPS.values()}
    confirmed = set()
    for entry in ENTRIES:
        failure = refusal(entry)
        assert (failure is not None) == bool(entry.guilty), entry.key
        if failure is not None:
            lines = {frame.line for frame in failure.frames}
            assert any(lines & set(guilty) for guilty in entry.guilty), entry.key
            confirmed |= {each for each in subjects if each.removesuffix(",") in failure.message}
    assert confirmed == subjects


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("puts_a_tensor_of_the_host", "`index_put` with a CPU tensor, which it copies"),
        ("fills_a_mask_with_the_maximum", "`masked_fill` with a tensor as value"),
        ("branches_with_cond", "`torch.cond` or `while_loop`, which reads its condition"),
        ("layer_by_a_tensor", "a tensor as the index of a layer"),
        ("rate_falls_on_a_plateau", "the scheduler, which reads the loss"),
        ("span_timer", "Event.synchronize()"),
        ("sparse_matrix_with_checks", "`sparse_coo_tensor`, which reads the range"),
        ("gradients_are_tested_for_nan", "`detect_anomaly`, which looks for NaN"),
        ("scripted_branch", "`TorchScript`, which reads a tensor value"),
        ("ctc_of_device_lengths", "`ctc_loss`, which copies its lengths to the host,"),
        ("ctc_loss_with_lengths_of_the_host", "`ctc_loss`, which copies its lengths to the device"),
    ],
)
def test_words(name, words):
    (entry,) = entries(name)
    assert words in refusal(entry).message


def test_torchscript_is_named_where_pytorch_tests_wrap_its_calls(monkeypatch):
    """Importing PyTorch's own test helpers replaces the call of a script function for good."""
    code = compile("def call(script, *args): return original(script, *args)", _TESTING, "exec")
    names = {"original": torch._C.ScriptMethod.__call__}
    exec(code, names)
    monkeypatch.setattr(torch._C.ScriptMethod, "__call__", names["call"])
    (entry,) = entries("scripted_branch")
    assert "`TorchScript`, which reads a tensor value" in refusal(entry).message
