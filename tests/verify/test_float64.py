"""Replays that round differently from eager are judged by a float64 run of eager."""

from __future__ import annotations

import copy

import pytest
import torch

from cgtool.jobs.verify.differences import size_of
from cgtool.jobs.verify.evidence import Trial
from cgtool.jobs.verify.runner import TrialRunner
from cgtool.jobs.verify.state import Snapshot
from tests.verify import rounding


def reference(target, spec, trial=None):
    """(the workload, eager, the float64 run, its recorder)"""
    subject = target(spec)
    subject.session.warm_up(lambda _text: None)
    start = Snapshot(subject.workload, subject.device)
    subject.capture(lambda _text: None)
    runner, trial = TrialRunner(subject, start), trial or Trial("three", 3)
    eager = runner.eager(trial)
    runner.begin_eager(trial)
    twin = copy.deepcopy(subject.workload.parts[0])
    run, recorder = runner.float64(trial)
    return twin, eager, run, recorder


def test_values_are_those_of_the_model_in_double_precision(target):
    part, eager, run, recorder = reference(target, "rounding.py:attention")
    assert recorder.failure is None and recorder.own_type == {}
    net = part.function.double()
    output = net(part.args[0].double())
    gradients = torch.autograd.grad(output.sum(), list(net.parameters()))
    exact = {
        f"gradient of {name}": value
        for (name, _), value in zip(net.named_parameters(), gradients, strict=True)
    }
    for values, measured in zip(run.iterations, eager.iterations, strict=True):
        assert size_of(values.after["output", "output"], output).largest < 1e-13
        assert 1e-9 < size_of(measured.after["output", "output"], output).largest < 1e-5
        for name, gradient in exact.items():
            assert size_of(values.after["gradient", name], gradient).largest < 1e-12


def test_a_training_step_goes_on_in_float64(target):
    _, eager, run, recorder = reference(target, "../../samples/train_step.py:build")
    assert recorder.failure is None
    name = "state", "parameter model.0.weight"
    assert run.iterations[2].after[name].dtype == torch.float64
    assert (
        0 < size_of(eager.iterations[2].after[name], run.iterations[2].after[name]).largest < 1e-6
    )


def test_views_writes_in_place_and_other_types(target, tmp_path):
    file = tmp_path / "entry.py"
    file.write_text(
        "import torch\n\ndef build(device):\n    def run(x):\n"
        "        table = torch.zeros(4, 4, device=x.device)\n"
        "        table.t()[1:3].add_(x[1:3].exp())\n"
        "        z = torch.view_as_complex(table.reshape(4, 2, 2))\n        z.mul_(1j)\n"
        "        y = torch.empty_like(x)\n        y.copy_(table.softmax(0, torch.float32))\n"
        "        half = x.to(torch.bfloat16).square()\n"
        "        return y, half.float(), x.argmax(), torch.fft.fft(x).conj()\n"
        "    return run, (torch.linspace(-1, 1, 16, device=device).reshape(4, 4),)\n"
    )
    _, _, run, recorder = reference(target, f"{file}:build", Trial("one"))
    assert recorder.failure is None and recorder.own_type == {}
    x = torch.linspace(-1, 1, 16).reshape(4, 4).double()
    table = torch.zeros(4, 4, dtype=torch.float64)
    table.t()[1:3].add_(x[1:3].exp())
    torch.view_as_complex(table.reshape(4, 2, 2)).mul_(1j)
    expected = table.softmax(0), x.square(), x.argmax(), torch.fft.fft(x).conj()
    for number, value in enumerate(expected):
        measured = run.iterations[0].after["output", f"output[{number}]"].clone()
        assert measured.dtype == value.dtype
        assert size_of(measured, value).largest < 1e-14


def test_ops_without_a_float64_kernel_run_in_their_own_types(target):
    _, eager, run, recorder = reference(target, "rounding.py:custom_op")
    assert list(recorder.own_type) == ["cgtool_tests::halve"]
    assert (
        size_of(
            eager.iterations[0].after["output", "output"],
            run.iterations[0].after["output", "output"],
        ).largest
        < 1e-4
    )


def test_a_custom_op_that_writes_in_place(target):
    part, _, run, recorder = reference(target, "rounding.py:custom_op_in_place", Trial("one"))
    assert recorder.failure is None and list(recorder.own_type) == ["cgtool_tests::add_into"]
    (x,), weight = part.args, part.function.__closure__[0].cell_contents
    expected = x.double() @ weight.double()
    expected[:, 3:5] += x[:, :2].double()
    assert size_of(run.iterations[0].after["output", "output"], 2 * expected).largest < 1e-6


def test_a_kernel_that_no_op_launches_is_not_missed(target):
    part, _, run, recorder = reference(target, "rounding.py:kernel_in_place", Trial("one"))
    assert recorder.failure is None and recorder.own_type == {}
    (x,) = part.args
    expected = 3 * x.double().exp() + 1
    assert size_of(run.iterations[0].after["output", "output[0]"], expected + 1).largest < 1e-5
    assert size_of(run.iterations[0].after["output", "output[1]"], expected.sum()).largest < 1e-4


def test_a_custom_op_that_fails_on_the_shadows_ends_the_float64_run_alone(verified, monkeypatch):
    def fail(*_arguments):
        raise KeyError("no such kernel")

    monkeypatch.setattr("cgtool.jobs.verify.float64._Op._in_own_type", fail)
    outcome = verified("rounding.py:custom_op_in_place")
    assert all(comparison.equal for comparison in outcome.comparisons)
    assert any("no such kernel" in note.text for note in outcome.notes)


ROUNDS = [
    "attention", "training", "in_bfloat16", "a_scalar", "custom_op", "custom_op_in_place",
    "atomics",
]  # fmt: skip


@pytest.mark.parametrize("name", ROUNDS)
def test_other_rounding_is_equal(verified, name):
    outcome = verified(f"rounding.py:{name}")
    assert {finding.severity for finding in outcome.findings} <= {"note"}
    assert not [note for note in outcome.notes if note.code == "too-noisy"]
    assert all(comparison.equal for comparison in outcome.comparisons)
    assert not all(comparison.exact for comparison in outcome.comparisons)
    judged = [each for each in outcome.comparisons if each.error is not None]
    assert judged and all(each.error <= each.tolerance for each in judged)


FAULTS = [
    "scaled_in_one_place", "stale", "scaled", "another_index", "atomics_and_scaled",
    "drops_the_gradient_of_a_bias", "gathers_the_next_row",
]  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_not_rounding_differs(verified, name):
    outcome = verified(f"rounding.py:{name}")
    assert not all(comparison.equal for comparison in outcome.comparisons)
    assert "code-branches-on-capturing" in {finding.code for finding in outcome.findings}


def test_a_branch_that_rounds_differently_is_not_blamed_for_another_fault(verified):
    outcome = verified("rounding.py:counter")
    codes = {finding.code for finding in outcome.findings}
    assert "cpu-state-step-counter" in codes and "code-branches-on-capturing" not in codes
    assert all(
        each.equal for each in outcome.comparisons if each.trial.endswith("inputs, replay 1")
    )


def test_without_memory_the_precision_of_the_type_counts(verified, monkeypatch):
    def no_memory(*_args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("cgtool.jobs.verify.float64.Shadows.of", no_memory)
    outcome = verified("rounding.py:attention")
    assert all(comparison.equal for comparison in outcome.comparisons)
    (note,) = {note.text for note in outcome.notes if note.code == "no-float64"}
    assert "not enough memory" in note
    assert not all(each.equal for each in verified("rounding.py:another_index").comparisons)


def test_the_code_runs_with_the_types_that_it_asks_for(target, tmp_path):
    file = tmp_path / "entry.py"
    file.write_text(
        "import torch\n\nseen = []\n\ndef build(device):\n    def run(x):\n"
        "        y = x.half() * 2\n        default = torch.get_default_dtype()\n"
        "        seen.append((x.dtype, y.dtype, default))\n        return y\n"
        "    return run, (torch.ones(4, device=device),)\n"
    )
    part, *_ = reference(target, f"{file}:build")
    seen = part.function.__globals__["seen"]
    assert set(seen) == {(torch.float32, torch.float16, torch.float32)}
    assert rounding.capturing() is False
