"""Scripts of ours: what is marked is found, and nothing else; innocent ones stay innocent.

Of the corpus, the scripts whose verdict was wrong once; ``benchmarks/corpus.py`` runs all.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.corpus.catalog import Entry, entries
from tests.detectors.scripts import Outcome, check, check_as_on_a_gpu, check_like_a_gpu, marks
from tests.forked_workers import in_fork

_HERE = Path(__file__).parent
INNOCENT = sorted((_HERE / "innocent").glob("*.py"))
GUILTY = sorted((_HERE / "guilty").glob("*.py"))
_BACKWARD = re.compile(r"backward\(|autograd\.grad|make_graphed_callables")
BACKWARDS = [path for path in (*INNOCENT, *GUILTY) if _BACKWARD.search(path.read_text())]
CORPUS = entries(
    "scripts:adapted_parameters_in_a_dict",
    "scripts:adapted_parameters_in_place",
    "scripts:answers_wait_in_a_queue",
    "scripts:best_loss_is_the_output",
    "scripts:bits_of_an_enum",
    "scripts:cache_of_graphs",
    "scripts:callables_with_a_strength",
    "scripts:capture_forgets_its_model",
    "scripts:captured_again_for_new_settings",
    "scripts:class_holds_the_graphs",
    "scripts:coroutines_share_the_input",
    "scripts:engine_reports_its_tokens",
    "scripts:fields_of_the_arm_are_filled",
    "scripts:frames_are_passed_by_dlpack",
    "scripts:gradient_hooks_are_removed",
    "scripts:gradients_are_divided_out_of_place",
    "scripts:gradients_pile_up",
    "scripts:graphs_of_both_modes",
    "scripts:head_collects_its_loss",
    "scripts:lazy_head_takes_shape_in_the_capture",
    "scripts:masks_with_numbers",
    "scripts:model_is_deep_copied_after_the_capture",
    "scripts:model_never_moved",
    "scripts:multistep_method_rotates_its_history",
    "scripts:name_goes_to_the_next_model",
    "scripts:operator_copies_its_table",
    "scripts:operator_on_the_device",
    "scripts:noise_hook_is_removed",
    "scripts:old_policy_is_the_new_one",
    "scripts:optimizer_first_steps_in_the_capture",
    "scripts:optimizer_is_made_again_for_each_domain",
    "scripts:parametrization_is_registered_later",
    "scripts:partial_replaced_before_a_new_capture",
    "scripts:policy_is_replaced_by_a_newer_one",
    "scripts:quantizer_observes_first_in_the_capture",
    "scripts:requests_count_their_tokens",
    "scripts:results_of_futures",
    "scripts:rows_are_counted_by_name",
    "scripts:runner_counts_its_replays",
    "scripts:scale_is_read_in_a_method",
    "scripts:settings_have_a_local_name",
    "scripts:settings_outlive_the_capture",
    "scripts:snapshots_are_taken_while_it_steps",
    "scripts:stages_share_a_pool",
    "scripts:throughput_in_a_dict",
    "scripts:tokens_are_counted_in_the_block",
    "scripts:towers_called_in_the_other_order",
    "scripts:transcripts_are_decoded_later",
    "scripts:weight_decay_is_raised",
)


def checked(path: Path) -> Outcome:
    return in_fork(check, path, timeout=120)


@pytest.mark.parametrize("path", INNOCENT, ids=lambda path: path.stem)
def test_innocent(path: Path) -> None:
    outcome = checked(path)
    assert outcome.failure is None
    assert outcome.findings == frozenset(), outcome.reasons
    assert not any("ended with" in part for part in outcome.looked)


@pytest.mark.parametrize("path", GUILTY, ids=lambda path: path.stem)
def test_guilty(path: Path) -> None:
    outcome = checked(path)
    assert outcome.findings == marks(path.read_text()), outcome.reasons
    assert outcome.failure is None


def test_what_one_call_shows() -> None:
    path = _HERE / "guilty" / "what_one_call_shows.py"
    outcome = in_fork(check_like_a_gpu, path, timeout=120)
    assert outcome.findings == marks(path.read_text()), outcome.reasons


@pytest.mark.parametrize("path", [*BACKWARDS], ids=lambda path: path.stem)
def test_backwards_on_a_thread_of_autograd(path: Path) -> None:
    outcome = in_fork(check_as_on_a_gpu, path, timeout=120)
    assert outcome.findings == marks(path.read_text()), outcome.reasons
    assert outcome.failure is None


@pytest.mark.parametrize(
    ("script", "is_note", "evidence"),
    [
        (
            _HERE / "guilty" / "last_batch_has_one_row.py",
            False,
            {"this line has also copied [4, 8]"},
        ),
        (_HERE / "guilty" / "all_beams_start_alike.py", True, {"this line broadcasts each time"}),
        (entries("scripts:broadcast_into_the_input")[0].file, False, set()),
    ],
    ids=lambda value: getattr(value, "stem", ""),
)
def test_a_broadcast_is_an_error_where_the_line_copies_whole_batches(
    script: Path, is_note: bool, evidence: set[str]
) -> None:
    outcome = checked(script)
    assert ("replay-with-other-shape" in outcome.notes) == is_note
    assert outcome.evidence == evidence


@pytest.mark.parametrize(
    ("script", "fix"),
    [
        ("one_cycle_moves_the_momentum", "cycle_momentum=False"),
        ("norms_join_the_optimizer_late", "capture again"),
        ("weight_decay_is_raised", "a graph for each value, or decay"),
        ("hook_added_later", "capture again after adding it"),
        # A bound of a slice.
        ("keys_go_round_by_an_integer", "`index_copy_`"),
    ],
)
def test_fix(script: str, fix: str) -> None:
    (entry,) = entries(f"scripts:{script}")
    fixes = checked(entry.file).fixes
    assert fixes
    assert all(fix in (each or "") for each in fixes)


def test_fix_of_what_a_graph_reads_of_one_that_did_not_run() -> None:
    fixes = checked(_HERE / "guilty" / "made_in_a_graph_that_did_not_run.py").fixes
    assert any("as a warm-up" in (fix or "") for fix in fixes)
    assert any((fix or "").startswith("replay graph ") for fix in fixes)


@pytest.mark.parametrize(
    ("script", "fixes"),
    [
        ("answer_read_by_another_thread", [("this line", "that computes it")]),
        ("replay_overwrites_what_is_read", [("the replay", "that reads it")]),
    ],
)
def test_fix_says_which_stream_waits(script: str, fixes: list[tuple[str, str]]) -> None:
    said = checked(_HERE / "guilty" / f"{script}.py").fixes
    for before, side in fixes:
        end = f"before {before}, where `side` is the stream {side}"
        assert any((fix or "").endswith(end) for fix in said), said


@pytest.mark.parametrize(
    ("script", "fix"),
    [
        ("more_tensors_in_a_list", "capture again when the number of items has changed"),
        ("parametrization_removed", "capture again"),
        ("rate_assigned_in_each_step", '`group["lr"].fill_(rate)`'),
    ],
)
def test_fix_of_a_guilty_script(script: str, fix: str) -> None:
    fixes = checked(_HERE / "guilty" / f"{script}.py").fixes
    assert all(fix in (each or "") for each in fixes), fixes


def test_several_tensors_at_one_replay_are_one_time() -> None:
    """Two gradients of a layer, in each step after the first, which has those of its replay."""
    assert checked(_HERE / "guilty" / "gradients_replaced.py").times == (2,)


def test_what_is_freed_has_a_name() -> None:
    (reason,) = checked(_HERE / "guilty" / "freed_by_name.py").reasons
    assert "`table.rows`" in reason


def test_fix_of_what_selects_tensors_is_no_tensor() -> None:
    fixes = checked(_HERE / "guilty" / "tensors_chosen_by_a_key.py").fixes
    assert fixes == {
        "capture a graph for each value, or `copy_()` the tensors that it selects into static ones "
        "before each replay",
        "capture a graph for each value, or again when it has changed",
    }


def test_graphs_that_one_line_captures_are_told_apart() -> None:
    path = _HERE / "guilty" / "pool_of_two_models.py"
    told = checked(path).evidence
    assert told > {
        f"graph 1 was captured at {path.name}:21, called from {path.name}:27",
        f"graph 2 was captured at {path.name}:21, called from {path.name}:28",
        f"read at {path.name}:36",
    }
    assert any(text.endswith(f", computed at {path.name}:22") for text in told)


def test_all_parameters_that_are_replaced_are_named() -> None:
    (entry,) = entries("scripts:actor_gets_new_weights")
    assert any(
        text == "the same is true of `policy.0.bias`, `policy.2.weight` and `policy.2.bias`"
        for text in checked(entry.file).evidence
    )


def test_fix_of_a_table_that_a_capture_makes_is_a_warm_up() -> None:
    path = _HERE / "guilty" / "table_made_in_the_capture.py"
    outcome = checked(path)
    assert outcome.evidence == {f"computed at {path.name}:18"}
    assert outcome.fixes == {
        "run the code once before the first capture, as a warm-up, so that this is computed then"
    }


def test_a_stream_that_waits_for_itself_is_named() -> None:
    (entry,) = entries("scripts:copy_stream_waits_for_itself")
    assert checked(entry.file).evidence == {
        f"the write is at {entry.file.name}:16",
        f"the wait at {entry.file.name}:20 orders nothing: a stream waits there for its own work",
    }


def test_fix_says_that_the_default_stream_is_to_be_waited_for() -> None:
    assert checked(_HERE / "guilty" / "read_on_another_stream.py").fixes == {
        "call `torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())` before this "
        "line"
    }


def test_a_stream_that_is_to_be_waited_for_has_its_name() -> None:
    path = _HERE / "guilty" / "pinned_read_after_an_event_of_another_stream.py"
    outcome = checked(path)
    assert outcome.fixes == {
        "wait before the host reads it: `mover.stream.synchronize()`, or an event that is recorded "
        "after the copy, on its stream"
    }
    assert outcome.evidence == {
        f"the event that the host waits for at {path.name}:26 was not recorded after the copy, or "
        "not on its stream",
        f"the wait at {path.name}:38 is for another stream",
    }


def test_pinned_memory_of_the_stream_that_replays() -> None:
    (fix,) = checked(_HERE / "guilty" / "pinned_read.py").fixes
    assert "`torch.cuda.current_stream().synchronize()`" in (fix or "")


def test_streams_that_wait_for_other_work_are_not_called_unordered() -> None:
    outcome = checked(_HERE / "guilty" / "waits_for_the_event_of_the_other_slot.py")
    assert outcome.reasons == (
        "this line reads what a replay writes on another stream, and no wait orders this line "
        "after that replay",
    )
    assert outcome.fixes == {
        "call `torch.cuda.current_stream().wait_stream(worker)` before this line, where `worker` "
        "is the stream of the replay"
    }


def test_a_draw_that_goes_on_is_an_error() -> None:
    assert checked(_HERE / "guilty" / "draws_of_the_host_go_on.py").warnings == set()


def test_a_branch_by_a_counter_is_one_finding() -> None:
    """A second call of the code runs its other branch: that is no first call."""
    (entry,) = entries("scripts:lookahead_counts_in_the_step")
    outcome = checked(entry.file)
    assert (outcome.findings, outcome.failure) == ({("control-flow-frozen", 17)}, None)


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_corpus(entry: Entry) -> None:
    outcome = checked(entry.file)
    if entry.guilty:
        assert any(map(entry.is_guilty_line, outcome.lines))
    else:
        assert (outcome.findings, outcome.failure) == (frozenset(), None)
