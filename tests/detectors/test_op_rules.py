"""Each rule of ``op_rules`` is one that a GPU confirms: it has an entry in the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributions import (
    FisherSnedecor,
    Geometric,
    Independent,
    MultivariateNormal,
    Normal,
    StudentT,
    VonMises,
    Wishart,
)

from cgtool.detectors.op_rules import OPS
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.devices.simulated.session import prepare
from cgtool.model.failure import CgtoolError
from cgtool.model.options import CaptureOptions
from cgtool.observe import call_sites
from cgtool.program.load import load
from cgtool.program.workload import Workload, WorkloadPart
from tests.corpus.catalog import CONFIRMS_RULES, programs

_TESTING = str(Path(torch.__file__).parent / "testing" / "_internal" / "jit_utils.py")

ENTRIES = programs(CONFIRMS_RULES)


def refusal(entry):
    """What a capture of an entry is refused for; None if it is captured."""
    with SimulatedDevice("test").active() as device:
        workload = load(entry.spec, device="cuda")
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
        assert (failure is not None) == entry.is_faulty, entry.name
        if failure is not None:
            lines = {frame.line for frame in failure.frames}
            assert lines & entry.marked_lines, entry.name
            confirmed |= {each for each in subjects if each.removesuffix(",") in failure.message}
    assert confirmed == subjects


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("puts_a_tensor_of_the_host", "`index_put` with a CPU tensor, which it copies"),
        ("fills_a_mask_with_the_maximum", "`masked_fill` with a tensor as value"),
        ("branches_with_cond", "`torch.cond` or `while_loop`, which reads its condition"),
        ("layer_by_a_tensor", "a tensor as the index of a layer"),
        ("sparse_matrix_with_checks", "`sparse_coo_tensor`, which reads the range"),
        ("gradients_are_tested_for_nan", "`detect_anomaly`, which looks for NaN"),
        ("scripted_branch", "`TorchScript`, which reads a tensor value"),
        ("ctc_loss_with_lengths_of_the_host", "`ctc_loss`, which copies its lengths to the device"),
    ],
)
def test_words(name, words):
    (entry,) = programs(name)
    assert words in refusal(entry).message


def test_a_backward_is_refused_for_what_the_code_wrote(tmp_path):
    file = tmp_path / "masks.py"
    file.write_text(_MASKS)
    lines = _MASKS.splitlines()
    marks = {(line.partition("# ")[2], number) for number, line in enumerate(lines, 1)}
    device = SimulatedDevice("test")
    with call_sites.recorded(), device.active():
        workload = load(f"{file}:build", device="cuda")
        (findings, _), _ = device.check(workload, CaptureOptions(), lambda _text: None, False)
    found = [(finding.code, finding.frames[0].line) for finding in findings]
    assert set(found) == {mark for mark in marks if mark[0]}
    assert len(found) == 2


_MASKS = """
import torch

def build(device):
    weight = torch.nn.Parameter(torch.ones(8, device=device))

    def step(x):
        y, mask = x * weight, x > 0
        z = y[mask].sum()  # sync-dynamic-shape-op
        y = y.clone()
        y[mask] = weight  # sync-masked-assignment
        return y.sum() + z

    return step, (torch.eye(8, device=device),)
"""

CHECKS = "construct the distribution with validate_args=False"


@pytest.mark.parametrize(
    ("sample", "subject", "fix"),
    [
        (lambda x, _: Normal(x, x).rsample(), "`torch.distributions`, which checks", CHECKS),
        (
            lambda x, _: Geometric(x / 9).log_prob(x),
            "`torch.distributions`, which checks",
            CHECKS,
        ),
        (lambda x, _: x[None, : x.long().sum()], "a tensor as a bound", "and mask"),
        # A loop that ends when all samples are accepted.
        (
            lambda x, _: VonMises(x, x, False).sample(),
            "`VonMises.sample`, which reads",
            "outside",
        ),
        (
            lambda x, _: Wishart(x[0] * 5, torch.diag(x), validate_args=False),
            "`Wishart`",
            "outside",
        ),
        (
            lambda x, _: FisherSnedecor(x, x, False),
            "`Gamma` inside `FisherSnedecor`, which checks",
            "set_default_validate_args(False)",
        ),
        (
            lambda x, _: MultivariateNormal(x, torch.diag(x), validate_args=False),
            "`MultivariateNormal`, which calls `torch.linalg`",
            "scale_tril=",
        ),
        (
            lambda x, _: torch.linalg.pinv(x[None]),
            "`torch.linalg.pinv`, which reads its error code",
            "outside",
        ),
        (
            lambda x, _: StudentT(x[0], x, x, False),
            "creating a device tensor from Python or NumPy data in `Gamma`",
            "replace it",
        ),
        (lambda x, _: torch.where(x > 0), "`where`, which calls `nonzero`", "(mask, x, other)"),
        (
            lambda x, _: x.index_put_((x > 0,), x * 2),
            "indexing with a boolean mask",
            "masked_scatter_(mask, values)",
        ),
        (
            lambda x, checked: Independent(checked, 1, validate_args=False).log_prob(x),
            "`Normal` inside `Independent`, which checks",
            "construct the `Normal`",
        ),
    ],
)
def test_what_a_library_reads_is_named(sample, subject, fix, monkeypatch):
    # Dynamo, once a test has compiled something, switches the checks off.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        x = torch.ones(3, device="cuda")
        # Constructed before the capture, with checks.
        checked = Normal(x, x, validate_args=True)
        part = WorkloadPart("test", lambda x: (sample(x, checked), x + 1)[1], (x,))
        workload = Workload("test", "callable", (part,))
        prepare(device, workload, CaptureOptions(), lambda _text: None)
    assert subject in caught.value.failure.message
    assert fix in caught.value.failure.fix


def test_torchscript_is_named_where_pytorch_tests_wrap_its_calls(monkeypatch):
    """Importing PyTorch's own test helpers replaces the call of a script function for good."""
    code = compile("def call(script, *args): return original(script, *args)", _TESTING, "exec")
    names = {"original": torch._C.ScriptMethod.__call__}
    exec(code, names)
    monkeypatch.setattr(torch._C.ScriptMethod, "__call__", names["call"])
    (entry,) = programs("scripted_branch")
    assert "`TorchScript`, which reads a tensor value" in refusal(entry).message


def _get_total_norm(x):
    return torch.nn.utils.get_total_norm([x], error_if_nonfinite=True)


def _is_in(x):
    return x if 0 in x else x + 1


@pytest.mark.parametrize(
    ("function", "subject", "fix"),
    [
        (lambda x: x.to_sparse(), "`to_sparse`, which calls `nonzero`", "keep the tensor dense"),
        (lambda x: torch.argwhere(x), "`argwhere`, which calls `nonzero`", "torch.where(mask"),
        (
            lambda x: torch.linalg.matrix_power(torch.diag(x), -2),
            "`torch.linalg.matrix_power`, which reads its error code",
            "`torch.linalg.inv_ex`",
        ),
        (lambda x: torch.linalg.tensorinv(torch.diag(x), 1), "`torch.linalg.tensorinv`", "outside"),
        (lambda x: torch.linalg.inv(torch.diag(x)), "`torch.linalg`", "`_ex` variant"),
        (_get_total_norm, "`error_if_nonfinite=True`, which reads the norm", "omit"),
        (_is_in, "`in` with a tensor", "`(x == value).any()`"),
    ],
)
def test_the_function_that_the_code_calls_is_named(function, subject, fix):
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        part = WorkloadPart("test", function, (torch.ones(3, device="cuda"),))
        workload = Workload("test", "callable", (part,))
        prepare(device, workload, CaptureOptions(), lambda _text: None)
    assert subject in caught.value.failure.message
    assert fix in caught.value.failure.fix


def test_a_matrix_that_backward_has_transposed_is_not_coalesced():
    with SimulatedDevice("test").active() as device, pytest.raises(CgtoolError) as caught:
        matrix = torch.eye(3).to_sparse().coalesce().cuda()
        weight = torch.ones(3, 2, device="cuda", requires_grad=True)
        part = WorkloadPart("test", lambda x: torch.sparse.mm(matrix, x), (weight,))
        workload = Workload("test", "callable", (part,))
        prepare(device, workload, CaptureOptions(), lambda _text: None)
    assert "`mm` in backward with the transpose" in caught.value.failure.message
    assert "dense" in caught.value.failure.fix and "coalesce" not in caught.value.failure.fix
