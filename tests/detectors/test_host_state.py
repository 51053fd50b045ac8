"""Host state that captured code reads: found where it reaches an op, whatever two calls in a row
show, and not reported where it reaches none."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from cgtool.analysis.reports import explain_findings
from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.model.finding import Finding
from cgtool.model.options import CaptureOptions
from cgtool.observe import call_sites
from cgtool.program.load import load
from cgtool.torch_compat.allocator import pins_in_captures
from tests.corpus.entries import (
    decoders_trackers_and_caches,
    idioms_of_python,
)
from tests.detectors import changing_state, harmless_state

PIN = "pin-memory-during-capture"
_MARK = re.compile(r"# <- ([a-z0-9-]+)")


def cases_of(module: ModuleType) -> list[str]:
    return [
        name
        for name, member in vars(module).items()
        if inspect.isfunction(member) and list(inspect.signature(member).parameters) == ["device"]
    ]


def marks_of(module: ModuleType, names: set[str], name: str) -> set[tuple[str, int]]:
    """The marks of a function, and of what it names in its module."""
    names.add(name)
    member = getattr(module, name)
    lines, first = inspect.getsourcelines(member)
    marks = {
        (mark[1], number)
        for number, line in enumerate(lines, first)
        for mark in _MARK.finditer(line)
    }
    for word in set(re.findall(r"\w+", "".join(lines))) - names:
        other = getattr(module, word, None)
        has_source = inspect.isclass(other) or inspect.isfunction(other)
        if has_source and other.__module__ == module.__name__:
            marks |= marks_of(module, names, word)
    return marks


def found(module: ModuleType | SimpleNamespace, name: str) -> list[Finding]:
    device = SimulatedDevice("test")
    with call_sites.recorded(), device.active():
        workload = load(f"{Path(module.__file__)}:{name}", device="cuda")
        (findings, _), _ = device.check(workload, CaptureOptions(), lambda _text: None)
    return list(findings)


def hazards(module: ModuleType, name: str) -> set[tuple[str, int]]:
    return {
        (finding.code, finding.place.line if finding.place else 0)
        for finding in explain_findings(found(module, name))
        # A copy to pinned memory is refused too, unless graphs have pools of that memory.
        if finding.severity != "note" and (pins_in_captures() or finding.code != PIN)
    }


def test_there_are_enough_of_them():
    assert len(cases_of(changing_state)) >= 40
    assert len(cases_of(harmless_state)) >= 40


@pytest.mark.parametrize("name", cases_of(changing_state))
def test_changing_state_is_found_at_its_line(name):
    marks = marks_of(changing_state, set(), name)
    assert marks
    assert hazards(changing_state, name) == marks


@pytest.mark.parametrize("name", cases_of(harmless_state))
def test_harmless_state_is_not_reported(name):
    assert hazards(harmless_state, name) == set()


def test_a_rebound_tensor_names_the_line_that_changes_it():
    (rebound,) = (
        finding
        for finding in found(changing_state, "history_of_outputs")
        if finding.code == "metadata-address-changed"
    )
    append = inspect.getsourcelines(changing_state.history_of_outputs)[1] + 4
    assert f"`outs` is changed at changing_state.py:{append}" in rebound.evidence


def test_a_name_that_gets_another_tensor_is_reported_where_it_is_assigned():
    (swapped,) = found(changing_state, "buffers_change_places")
    line = line_in("Swaps", "self.next.copy_")
    assert swapped.evidence[1].startswith(f"read at changing_state.py:{line}, ")
    assert "`self.now` is a different tensor" in swapped.reason


def test_a_tensor_that_replaces_another_in_a_container_is_reported_where_it_does():
    (_, state) = found(changing_state, "attribute_and_tuple_are_rebound")
    assert state.frames[0].line == line_in("Rebinds", "self.state = (")
    assert state.evidence[1] == f"read at changing_state.py:{line_in('Rebinds', 'self.state[0]')}"
    assert "`self.state[0]` is a different tensor" in state.reason
    assert "where it is assigned now" in state.fix


def test_a_tensor_that_is_kept_beside_others_is_reported_where_it_is_read():
    (read,) = (
        finding
        for finding in found(changing_state, "history_of_outputs")
        if finding.code == "metadata-address-changed"
    )
    assert "older.copy_(newer)" in read.fix


def test_what_changes_beside_it_on_a_line_is_named():
    (counted,) = found(changing_state, "two_numbers_on_one_line")
    assert "`self.gain`" in counted.reason
    assert "the same is true of `self.shift`" in counted.evidence


def test_an_item_that_is_used_twice_is_one_finding():
    (moved,) = found(changing_state, "batch_of_an_inner_object")
    assert moved.reason.startswith("`self.batches` of `Feeds.__next__` moves on")
    line = line_in("batch_of_an_inner_object", "return y + x")
    assert f"also used at changing_state.py:{line}" in moved.evidence


def test_draws_that_are_kept_before_they_are_used_are_named():
    (drawn,) = found(changing_state, "two_draws_kept_in_names")
    line = line_in("two_draws_kept_in_names", "uniform")
    assert f"also drawn at changing_state.py:{line}" in drawn.evidence


def line_in(name: str, text: str) -> int:
    member = getattr(changing_state, name)
    lines, first = inspect.getsourcelines(member)
    return next(number for number, line in enumerate(lines, first) if text in line)


@pytest.mark.parametrize(
    ("name", "owner", "assignment", "place"),
    [
        ("data_of_a_parameter", "data_of_a_parameter", "each.data =", "each.data"),
        ("data_restored_from_a_copy", "data_restored_from_a_copy", "each.data =", "each.data"),
        ("data_of_a_tensor_restored", "data_of_a_tensor_restored", "scale.data =", "scale.data"),
        ("memory_set_from_a_copy", "memory_set_from_a_copy", "weight.set_(", "weight"),
        ("tensors_swapped_with_copies", "tensors_swapped_with_copies", "swap_tensors", "weight"),
        ("counter_that_chooses_a_batch", "counter_that_chooses_a_batch", "+= 1", "state['batch']"),
        (
            "parameters_from_a_vector",
            "parameters_from_a_vector",
            "vector_to_parameters(flat",
            "layer.parameters()",
        ),
        (
            "parameters_from_an_assigned_state_dict",
            "parameters_from_an_assigned_state_dict",
            "load_state_dict",
            "layer",
        ),
    ],
)
def test_what_a_tensor_is_found_by_is_named_with_its_line(name, owner, assignment, place):
    evidence = [
        text
        for finding in found(changing_state, name)
        if finding.code == "metadata-address-changed"
        for text in finding.evidence
    ]
    line = line_in(owner, assignment)
    assert f"`{place}` is changed at changing_state.py:{line}" in evidence


def test_what_is_changed_once_is_one_error_at_the_line_that_changes_it():
    (rebound,) = found(changing_state, "data_of_a_parameter")
    read = line_in("data_of_a_parameter", "y = x")
    assert any(
        text.startswith(f"also read at changing_state.py:{read}") for text in rebound.evidence
    )


def test_a_tensor_has_the_name_that_it_had_when_it_was_read():
    (rebound,) = found(changing_state, "buffers_change_places")
    assert rebound.reason.startswith("`self.now` is a different tensor")
    (first, *_) = found(changing_state, "attribute_and_tuple_are_rebound")
    assert first.reason.startswith("`self.u` is a different tensor")


def test_what_is_read_on_the_host_is_named_before_the_number_that_follows_from_it():
    codes = [finding.code for finding in found(changing_state, "number_read_from_a_storage")]
    assert codes == ["sync-d2h-copy", "python-scalar-frozen"]


def test_the_line_that_fills_a_container_is_named_where_that_decides():
    (decides,) = found(changing_state, "handlers_added_in_each_call")
    line = decides.frames[0].line - 1
    assert decides.reason.startswith(
        f"`handlers['scale']`, which changing_state.py:{line} changes, decides"
    )
    assert "before the capture" in decides.fix


def test_a_tensor_that_the_code_assigns_is_to_be_filled_there():
    (moved,) = found(changing_state, "object_that_keeps_the_last_output")
    assert moved.fix.startswith("allocate the tensor once, before the capture, and where it is")


def test_a_tensor_that_gets_other_memory_is_to_be_filled_there():
    (moved,) = found(changing_state, "weight_gets_other_memory")
    assert moved.fix.startswith("allocate the tensor once, before the capture, and where it is")


def test_tensors_that_move_through_a_queue_are_to_be_copied_from_place_to_place():
    (moved,) = found(changing_state, "outputs_wait_in_a_queue")
    assert "`older.copy_(newer)`" in moved.fix


def test_what_grows_cannot_be_copied_into():
    (grown,) = found(changing_state, "cache_grows_by_cat")
    assert "is a different tensor, of another shape," in grown.reason
    assert "`index_copy_`" in grown.fix and "`copy_()`" not in grown.fix


def test_a_drawn_number_that_no_tensor_can_replace_has_the_fix_of_the_op():
    (drawn,) = found(changing_state, "width_drawn_by_torch")
    assert drawn.fix.startswith("`aten::slice.Tensor` takes only numbers")


def test_a_number_is_named_with_the_op_that_gets_it():
    drawn, *_ = found(idioms_of_python, "augmentation_by_learned_odds")
    assert "reaches aten::mul.Tensor" in drawn.reason


def test_a_tensor_that_a_coroutine_keeps_is_named_by_the_coroutine():
    (kept,) = found(changing_state, "coroutine_that_keeps_a_tensor")
    assert kept.reason.startswith("a tensor that `difference` holds where it is suspended is a")


def test_a_list_that_grows_is_not_called_a_number():
    (grows,) = found(changing_state, "list_that_grows")
    assert "aten::stack got 2, then 3 tensors" in grows.evidence
    assert not grows.fix or "number" not in grows.fix


def test_what_pytorch_computes_of_a_size_that_grows_is_no_number_of_its_own():
    (grows,) = found(changing_state, "quantile_of_a_list_that_grows")
    assert "aten::stack got 2, then 3 tensors" in grows.evidence


def test_values_of_a_cpu_tensor_are_not_called_a_number():
    (values,) = (
        finding
        for finding in found(changing_state, "points_copied_from_the_host")
        if finding.code == "cpu-work-in-region"
    )
    assert "a CPU tensor with different values" in values.reason


def test_a_counter_is_named_before_what_it_chooses_and_with_the_op_that_computes():
    first, second = found(changing_state, "counter_that_chooses_a_batch")
    assert (first.code, first.severity) == ("cpu-state-step-counter", None)
    assert "aten::addmm" in first.reason and "select" in first.fix
    assert second.code == "metadata-address-changed"


def test_an_iterator_of_tensors_is_not_called_a_number():
    for name in ("iterator_of_batches", "iterator_of_batches_on_the_host"):
        (moves,) = found(changing_state, name)
        assert "`batches` moves on with every call" in moves.reason
        assert not any("has changed" in note for note in moves.evidence)
        assert "before each replay" in moves.fix


def test_a_clock_names_the_line_that_uses_it():
    (clock,) = found(changing_state, "clock_that_is_used_later")
    used = line_in("clock_that_is_used_later", "x * now")
    assert f"used at changing_state.py:{used}" in clock.evidence


def test_a_number_that_cools_is_not_told_to_count():
    (cools,) = found(changing_state, "number_that_cools")
    (passes,) = found(changing_state, "time_that_passes")
    assert "`mul_`" in cools.fix
    assert "`add_`" in passes.fix


def test_a_setting_is_named():
    (rate,) = (
        finding
        for finding in found(changing_state, "rate_of_an_optimizer")
        if finding.code == "python-scalar-frozen"
    )
    assert '`group["lr"]`' in rate.reason


def test_an_object_that_is_replaced_is_not_called_a_branch_or_a_number():
    local, item = found(changing_state, "teacher_is_copied_anew")
    (attribute,) = found(changing_state, "teacher_of_a_trainer_is_copied_anew")
    copies = "teacher_is_copied_anew"
    for finding, name, line in (
        (local, "teacher", line_in(copies, " teacher = copy")),
        (item, "nets['teacher']", line_in(copies, "] = copy")),
        (attribute, "self.teacher", line_in("TrainerOfACopy", "y = self") + 1),
    ):
        assert finding.reason.startswith(f"`{name}` is a different object in the next call")
        assert "load_state_dict" in finding.fix
        assert f"`{name}` is changed at changing_state.py:{line}" in finding.evidence


def test_a_value_that_chooses_tensors_does_not_choose_ops():
    (chooses,) = found(changing_state, "agenda_chooses_a_layer")
    assert chooses.reason.startswith("`self.agenda`")
    assert "decides which tensors the ops read here" in chooses.reason


def test_an_attribute_with_a_computed_name_is_named_as_it_is_written():
    moves = found(changing_state, "taps_are_moved_by_name")
    line = line_in("DelaysByName", "{k - 1}")
    evidence = {text for finding in moves for text in finding.evidence}
    assert (
        f"""`getattr(self, f"tap{{k}}")` is changed by `setattr` at changing_state.py:{line}"""
        in evidence
    )


def test_a_list_of_lists_of_tensors_is_not_called_one_of_numbers():
    (grows,) = found(changing_state, "snapshots_of_weights_in_a_list")
    assert not grows.fix or "number" not in grows.fix


def test_a_draw_with_a_bound_that_changes_is_not_to_be_kept():
    (grows,) = found(changing_state, "bound_of_a_draw_grows")
    assert "(torch.rand(...) * n).long()" in grows.fix


def test_fix_of_a_number_fits_what_the_op_does_with_it():
    findings = found(changing_state, "momentum_that_decays")
    fixes = [each.fix for each in findings if each.code == "python-scalar-frozen"]
    assert len(fixes) == 1 and "dropout" not in fixes[0]


@pytest.mark.parametrize("name", ["overlap_add_by_a_context_variable", "video_track_is_replaced"])
def test_what_the_code_makes_for_the_next_call_is_copied_where_it_is_assigned(name):
    fixes = {finding.fix for finding in found(decoders_trackers_and_caches, name)}
    assert len(fixes) == 1
    assert all("where it is assigned now" in (fix or "") for fix in fixes)
