"""Verdicts: counts are compared exactly, times have three answers, and what must not be compared
is not."""

from __future__ import annotations

import random
import re
from pathlib import Path

import msgspec
import pytest

from cgtool.analysis.gate.budgets import Budgets, from_options, same_entry
from cgtool.analysis.gate.evidence import Measured, as_typed
from cgtool.analysis.gate.judge import exit_code, gate_report, judge
from cgtool.analysis.gate.measured import measure
from cgtool.analysis.gate.metrics import BY_NAME, METRICS, count, runs_of
from cgtool.analysis.gate.verdict import FAIL, PASS, UNKNOWN
from cgtool.model.baseline import Baseline
from cgtool.model.capture import Capture, Caveat, Entry, Frame, Graph, Node
from cgtool.model.capture_file import read
from cgtool.model.finding import Comparison, Finding, Report
from cgtool.model.measurements import Bench, Clock, Samples
from tests.builders import capture, environment, huge, small

ROOT = Path(__file__).resolve().parent.parent.parent
CAPTURES = ROOT / "samples" / "captures"
replace = msgspec.structs.replace


def budgets(**texts: str) -> Budgets:
    """``budgets(max_nodes="3", max_increase="nodes=2%")``."""
    increases = [texts.pop("max_increase")] if "max_increase" in texts else []
    return from_options({name.replace("_", "-"): [text] for name, text in texts.items()}, increases)


def only(measured: Measured, held: Budgets, baseline: Baseline | None = None, **more):
    """The one verdict of a metric that a budget or tolerance names."""
    judged = judge(measured, held, baseline, **more)
    (metric,) = {limit.metric for limit in (*held.limits, *held.increases)}
    verdicts = [
        verdict for verdict in judged.verdicts if verdict.metric.partition(".")[0] == metric
    ]
    assert len(verdicts) == 1
    return verdicts[0]


def timed(
    replay_us: float,
    eager_us: float = 100.0,
    *,
    runs: int = 1,
    spread: float = 0.002,
    seed: int = 0,
    clock: Clock | None = None,
    phase: str = "both",
) -> Capture:
    """A capture of an H200 with a bench of this test's making: runs that differ by ``spread``,
    rounds that differ by a tenth of it."""
    draw = random.Random(seed)

    def rounds(middle: float) -> tuple[float, ...]:
        mine = middle * (1 + draw.gauss(0, spread))
        return tuple(1e3 * mine * (1 + draw.gauss(0, spread / 10)) for _ in range(10))

    samples = tuple(
        Samples(name, phase, rounds(middle), run=run)
        for run in range(runs)
        for name, middle in (("eager", eager_us), ("replay", replay_us))
    )
    return replace(small(), bench=Bench(samples, clock))


# --- what is counted


def test_counts_of_a_capture() -> None:
    counts = count(small())
    assert (counts["nodes"], counts["nodes.forward"], counts["nodes.backward"]) == (12, 7, 5)
    assert (counts["kernels"], counts["copies"], counts["memsets"]) == (10, 1, 1)
    assert (counts["graphs"], counts["edges"], counts["pool-mib"]) == (2, 11, 2.0)
    assert "exec-mib" not in counts


def test_counts_of_a_recorded_capture_are_those_that_the_other_commands_show() -> None:
    counts = count(read(CAPTURES / "transformer.cgt"))
    assert (counts["nodes"], counts["nodes.backward"], counts["edges"]) == (190, 140, 188)
    assert (counts["pool-mib"], counts["live-mib"]) == (104.0, pytest.approx(69.0, abs=0.05))
    assert counts["exec-mib"] == 2.0


def test_the_simulated_device_has_no_kernels_to_count() -> None:
    nodes = tuple(Node(at, "op") for at in range(3))
    measured = measure([capture([Graph("forward", "forward", nodes=nodes)], simulated=True)])
    assert measured.values.counts["nodes"] == 3
    for name in ("kernels", "copies", "memsets", "exec-mib", "replay-us", "capture-ms"):
        assert name in measured.unknown
        assert name not in measured.values.counts
    judged = judge(measured, budgets(max_kernels="0"))
    assert [verdict.verdict for verdict in judged.verdicts] == [UNKNOWN]
    assert "simulated" in judged.verdicts[0].text


def test_times_are_numbered_and_zero_rounds_have_none() -> None:
    first, second = timed(30, runs=2), timed(31, runs=1)
    empty = replace(small(), bench=Bench((Samples("replay", "forward", (0.0, 0.0)),)))
    values = measure([first, second, empty]).values
    assert sorted({sample.run for sample in values.samples}) == [0, 1, 2]
    assert len(runs_of(values, BY_NAME["replay-us"], None)) == 3
    assert runs_of(measure([empty]).values, BY_NAME["replay-us"], None) == ()
    assert len(values.capture_ns) in (0, 3)


def test_the_whole_iteration_is_what_a_time_without_a_phase_means() -> None:
    values = measure([read(CAPTURES / "mlp-bench.cgt")]).values
    replay = BY_NAME["replay-us"]
    assert runs_of(values, replay, None) == runs_of(values, replay, "both")
    assert runs_of(values, replay, None) != runs_of(values, replay, "forward")
    capture = read(CAPTURES / "mlp-bench.cgt")
    kept = tuple(sample for sample in capture.bench.samples if sample.phase == "forward")
    forward = measure([replace(capture, bench=replace(capture.bench, samples=kept))])
    assert only(forward, budgets(max_replay_us="90")).verdict == UNKNOWN
    assert only(forward, budgets(max_replay_us="forward=90")).verdict == PASS
    assert judge(forward, Budgets(), values).notes == (
        "in the baseline and not measured here: replay-us",
    )
    (speedups,) = runs_of(values, BY_NAME["speedup"], "forward")
    assert len(speedups) == 20
    assert 2.7 < min(speedups) < max(speedups) < 3.2


def test_counts_that_differ_between_runs_are_reported() -> None:
    other = replace(small(), graphs=small().graphs[:1])
    assert measure([small(), small()]).notes == ()
    (note,) = measure([small(), other]).notes
    assert "nodes differs from run to run: 7, 12" in note


# --- budgets


@pytest.mark.parametrize(
    ("held", "verdict", "text"),
    [
        (budgets(max_nodes="12"), PASS, ""),
        (budgets(max_nodes="11"), FAIL, "1 over"),
        (budgets(max_nodes="backward=5"), PASS, ""),
        (budgets(max_nodes="forward=5"), FAIL, "2 over"),
        (budgets(min_nodes="12"), PASS, ""),
        (budgets(min_nodes="13"), FAIL, "1 short"),
        (budgets(max_pool_mib="2"), PASS, ""),
        (budgets(max_pool_mib="1.5"), FAIL, "0.5 MiB over"),
        (budgets(max_nodes="step=5"), UNKNOWN, "no step graph"),
        (budgets(max_exec_mib="5"), UNKNOWN, "does not say"),
        (budgets(max_findings="0"), UNKNOWN, "cgtool check"),
        (budgets(max_mismatches="0"), UNKNOWN, "cgtool verify"),
        (budgets(max_replay_us="5"), UNKNOWN, "cgtool bench"),
    ],
)
def test_counts_against_a_limit(held: Budgets, verdict: str, text: str) -> None:
    result = only(measure([small()]), held)
    assert result.verdict == verdict
    assert text in result.text
    assert bool(result.evidence) == (verdict == FAIL)


def test_the_worst_comes_first_and_decides() -> None:
    measured = measure([small()])
    held = from_options(
        {"max-edges": ["2"], "max-nodes": ["400"], "max-findings": ["0"], "max-graphs": ["1"]}
    )
    judged = judge(measured, held)
    assert [verdict.metric for verdict in judged.verdicts] == [
        "graphs",
        "edges",
        "findings",
        "nodes",
    ]
    assert exit_code(gate_report((judged,))) == 1
    assert exit_code(gate_report((judge(measured, budgets(max_findings="0")),))) == 5
    assert exit_code(gate_report((judge(measured, budgets(max_nodes="12")),))) == 0
    assert exit_code(gate_report(())) == 0
    both = gate_report(
        (judge(measured, budgets(max_nodes="12")), judge(measured, budgets(max_nodes="1")))
    )
    assert both.verdict == FAIL


@pytest.mark.parametrize(
    ("replay_us", "runs", "limit", "verdict"),
    [
        (30.0, 1, "31.5", PASS),
        (30.0, 1, "30.2", UNKNOWN),
        (30.0, 1, "29.8", UNKNOWN),
        (30.0, 1, "28.5", FAIL),
        (30.0, 12, "30.2", PASS),
        (30.0, 12, "29.8", FAIL),
    ],
)
def test_a_time_against_a_limit(replay_us: float, runs: int, limit: str, verdict: str) -> None:
    """One run may be off by what runs of a GPU differ by; a dozen say how much that is."""
    result = only(measure([timed(replay_us, runs=runs)]), budgets(max_replay_us=limit))
    assert result.verdict == verdict
    assert result.low < result.measured < result.high
    assert (result.more_runs or 0) > 0 if verdict == UNKNOWN else result.more_runs is None


def test_as_many_more_runs_as_it_says_would_tell() -> None:
    held = budgets(max_replay_us="30.2")
    first = only(measure([timed(30, runs=3, spread=0.01)]), held)
    assert first.verdict == UNKNOWN
    runs = 3 + first.more_runs
    verdicts = [
        only(measure([timed(30, runs=runs, spread=0.01, seed=seed)]), held).verdict
        for seed in range(40)
    ]
    assert verdicts.count(PASS) > 20
    assert FAIL not in verdicts


def test_a_speed_up_against_a_limit() -> None:
    measured = measure([timed(30, 100, runs=6)])
    assert only(measured, budgets(min_speedup="3")).verdict == PASS
    assert only(measured, budgets(min_speedup="3.33")).verdict == UNKNOWN
    assert only(measured, budgets(min_speedup="4")).verdict == FAIL


def test_a_false_alarm_of_a_limit_is_rare() -> None:
    """True time at the limit: at most 1 in 200 is called over it, at any number of runs."""
    held = budgets(max_replay_us="30")
    for runs in (1, 3, 6):
        called = sum(
            only(measure([timed(30, runs=runs, spread=0.005, seed=seed)]), held).verdict == FAIL
            for seed in range(300)
        )
        assert called <= 3


def test_times_that_are_judged_together_share_the_level() -> None:
    """Each is wider than it were alone: any of them can fail the target by chance."""
    measured = measure([timed(30, runs=6, spread=0.01)])
    base = measure([timed(30, runs=10, spread=0.01, seed=5)]).values

    def width(held: Budgets, base: Baseline | None = None) -> float:
        judged = judge(measured, held, base)
        verdict = next(
            verdict
            for verdict in judged.verdicts
            if verdict.metric == "replay-us" and verdict.limit
        )
        return verdict.high / verdict.low

    alone = width(budgets(max_replay_us="40"))
    two = width(budgets(max_replay_us="40", min_speedup="2"))
    assert alone < two == width(budgets(max_replay_us="40"), base)
    # Counts are exact, and what was not timed is not judged.
    assert width(budgets(max_replay_us="40", max_nodes="400", max_eager_us="step=1")) == alone

    def ratios(held: Budgets) -> tuple[float, float]:
        judged = judge(measured, held, base)
        (verdict,) = (
            verdict
            for verdict in judged.verdicts
            if verdict.metric == "replay-us" and not verdict.limit
        )
        return verdict.ratio_low, verdict.ratio_high

    low, high = ratios(Budgets())
    assert ratios(budgets(min_speedup="2"))[0] < low < high < ratios(budgets(min_speedup="2"))[1]


def test_fewer_looks_leave_more_of_the_level_to_each() -> None:
    measured, held = measure([timed(30, runs=6, spread=0.01)]), budgets(max_replay_us="40")
    once, often = (judge(measured, held, looks=looks).verdicts[0] for looks in (1, 4))
    assert often.low < once.low < once.high < often.high


@pytest.mark.parametrize(
    "clock",
    [Clock((1980,), throttle_reasons=("power cap",)), Clock((1980,), other_processes=2)],
)
def test_times_of_a_disturbed_gpu_do_not_fail(clock: Clock) -> None:
    slow = measure([timed(60, runs=12, clock=clock)])
    verdict = only(slow, budgets(max_replay_us="30"))
    assert verdict.verdict == UNKNOWN
    assert "the GPU" in verdict.text
    # The next run may be left in peace.
    assert (verdict.more_runs, verdict.open) == (1, True)
    assert only(slow, budgets(max_replay_us="70")).verdict == PASS
    base = measure([timed(30, runs=12)]).values
    judged = judge(slow, Budgets(), base)
    verdicts = {verdict.metric: verdict for verdict in judged.verdicts}
    assert verdicts["replay-us"].verdict == UNKNOWN
    assert "the GPU" in verdicts["replay-us"].text
    assert verdicts["nodes"].verdict == PASS


def test_capture_time_of_one_run_may_be_off_by_a_quarter() -> None:
    graphs = [
        replace(graph, capture_ns=500_000, instantiate_ns=500_000) for graph in small().graphs
    ]
    measured = measure([replace(small(), graphs=tuple(graphs))])
    assert only(measured, budgets(max_capture_ms="3")).verdict == PASS
    assert only(measured, budgets(max_capture_ms="1.9")).verdict == UNKNOWN
    failed = only(measured, budgets(max_capture_ms="1"))
    assert failed.verdict == FAIL
    assert failed.evidence[0] == "forward: capture 0.5 ms, instantiate 0.5 ms"


# --- a baseline


def changed(counts: dict[str, float], **fields: object) -> Baseline:
    base = measure([small()]).values
    return replace(base, counts={**base.counts, **counts}, **fields)


def test_the_same_capture_is_the_same() -> None:
    judged = judge(measure([small()]), Budgets(), measure([small()]).values)
    of_programs = {"rerecords", "unused", "failed-captures"}
    watched = {metric.name for metric in METRICS if metric.watched and metric.source == "capture"}
    assert {verdict.metric for verdict in judged.verdicts} == watched - of_programs
    assert {verdict.verdict for verdict in judged.verdicts} == {PASS}
    assert {verdict.text for verdict in judged.verdicts} == {"the same"}
    assert judged.notes == ()


@pytest.mark.parametrize(
    ("before", "allowed", "verdict", "text"),
    [
        (12, "nodes=0", PASS, "the same"),
        (14, "nodes=0", PASS, "2 less"),
        (11, "nodes=0", FAIL, "1 more"),
        (11, "nodes=1", PASS, "1 more"),
        (10, "nodes=1", FAIL, "2 more"),
        (11, "nodes=10%", PASS, "1 more"),
        (11, "nodes=9%", FAIL, "1 more"),
        (0, "nodes=50%", FAIL, "12 more"),
    ],
)
def test_counts_against_a_baseline(before: int, allowed: str, verdict: str, text: str) -> None:
    base = changed({"nodes": before})
    result = only(measure([small()]), budgets(max_increase=allowed), base)
    assert (result.verdict, result.text) == (verdict, text)
    assert (result.measured, result.baseline) == (12, before)


@pytest.mark.parametrize("percent", range(1, 101))
def test_a_count_at_its_limit_passes_and_one_more_does_not(percent: int) -> None:
    """100 * 0.29 is 28.999999999999996."""
    now = measure([small()])
    at_limit = replace(now, values=changed({"nodes": 100 + percent}))
    over = replace(now, values=changed({"nodes": 101 + percent}))
    base, held = changed({"nodes": 100}), budgets(max_increase=f"nodes={percent}%")
    assert only(at_limit, held, base).verdict == PASS
    assert only(over, held, base).verdict == FAIL


def test_a_count_removed_from_the_baseline_is_reported() -> None:
    base = changed({})
    rest = {name: count for name, count in base.counts.items() if name != "nodes"}
    judged = judge(measure([small()]), Budgets(), replace(base, counts=rest))
    assert "not in the baseline, so not compared: nodes" in judged.notes
    assert not any(
        "so not compared" in note for note in judge(measure([small()]), Budgets(), base).notes
    )


def test_edges_are_compared_only_when_requested() -> None:
    base = changed({"edges": 1})
    assert "edges" not in {
        verdict.metric for verdict in judge(measure([small()]), Budgets(), base).verdicts
    }
    assert only(measure([small()]), budgets(max_increase="edges=0"), base).verdict == FAIL


def test_one_side_lacks_a_metric() -> None:
    """By default that is a note; a metric that was requested by name is undecided."""
    base = changed({"findings": 0})
    judged = judge(measure([small()]), Budgets(), base)
    assert "findings" not in {verdict.metric for verdict in judged.verdicts}
    assert judged.notes == ("in the baseline and not measured here: findings",)
    verdict = only(measure([small()]), budgets(max_increase="findings=0"), base)
    assert (verdict.verdict, "cgtool check" in verdict.text) == (UNKNOWN, True)
    lacking = replace(base, counts={"edges": 11})
    verdict = only(measure([small()]), budgets(max_increase="nodes=0"), lacking)
    assert verdict.verdict == UNKNOWN
    assert "the baseline does not have it" in verdict.text
    (nothing,) = judge(measure([small()]), Budgets(), lacking).verdicts
    assert (nothing.metric, nothing.verdict) == ("baseline", UNKNOWN)


@pytest.mark.parametrize("here", [True, False])
def test_ops_of_the_simulated_device_are_never_compared_with_nodes(here: bool) -> None:
    values = measure([small()]).values
    other = replace(values, environment=environment(simulated=True), counts={"nodes": 1})
    real, simulated = measure([small()]), replace(measure([small()]), values=other)
    measured, base = (simulated, values) if here else (real, other)
    (verdict,) = judge(measured, Budgets(), base).verdicts
    assert (verdict.metric, verdict.verdict) == ("baseline", UNKNOWN)
    assert "NVIDIA H200" in verdict.text
    assert "simulated device" in verdict.text


def test_times_against_a_baseline_have_three_answers() -> None:
    base = measure([timed(30, runs=10)]).values

    def verdict(replay_us: float, runs: int) -> tuple[str, int | None]:
        measured = measure([timed(replay_us, runs=runs, seed=7)])
        (verdict,) = (
            verdict
            for verdict in judge(measured, Budgets(), base).verdicts
            if verdict.metric == "replay-us"
        )
        return verdict.verdict, verdict.more_runs

    assert verdict(30.0, 6) == (PASS, None)
    assert verdict(33.0, 10) == (FAIL, None)
    assert verdict(30.3, 3)[0] == UNKNOWN
    # A lower speedup is worse: the sides are the other way round.
    slower = measure([timed(33.0, runs=10, seed=7)])
    worse = only(slower, budgets(max_increase="speedup=3%"), base)
    assert worse.verdict == FAIL
    assert worse.ratio_low < worse.ratio < worse.ratio_high < 1
    better = measure([timed(27.0, runs=10, seed=7)])
    assert only(better, budgets(max_increase="speedup=3%"), base).verdict == PASS


def test_an_undecided_speedup_names_the_right_side() -> None:
    """It is worse when it is smaller: the sides stay what they are all the same."""
    base = measure([timed(30, runs=10, spread=0.012)]).values
    lower = measure([timed(30.45, runs=3, spread=0.012, seed=3)])
    judged = judge(lower, budgets(max_increase="speedup=1%"), base)
    replay, speedup = (
        next(verdict for verdict in judged.verdicts if verdict.metric == name)
        for name in ("replay-us", "speedup")
    )
    assert (replay.verdict, speedup.verdict) == (UNKNOWN, UNKNOWN)
    for verdict, sign in ((replay, "+"), (speedup, "-")):
        assert verdict.text.startswith(sign)
        assert " by 10 and 3 runs: " in verdict.text
        assert "a baseline of 3" not in verdict.text


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("device", "NVIDIA A100", "GPU"),
        ("driver", "570.1", "driver"),
        ("torch", "2.8.0", "PyTorch"),
        ("cuda_runtime", "12.8", "CUDA"),
    ],
)
def test_another_machine_serves_for_counts_and_not_for_times(
    field: str, value: str, word: str
) -> None:
    here = measure([timed(60, runs=10)])
    base = measure([timed(30, runs=10)]).values
    base = replace(base, environment=replace(base.environment, **{field: value}))
    by_metric = {verdict.metric: verdict for verdict in judge(here, Budgets(), base).verdicts}
    assert by_metric["replay-us"].verdict == UNKNOWN
    assert f"different {word}" in by_metric["replay-us"].text
    assert by_metric["nodes"].verdict == PASS
    notes = judge(here, Budgets(), base).notes
    assert (value in "".join(notes)) == (field != "driver")


def test_times_that_begin_on_an_idle_gpu_are_not_compared_with_others() -> None:
    """Earlier versions measured so, and a replay took up to 6% longer."""
    here = measure([timed(30, runs=10)])
    later = tuple(replace(sample, lead_in=20) for sample in here.values.samples)
    here = replace(here, values=replace(here.values, samples=later))
    base = measure([timed(31, runs=10)]).values
    by_metric = {verdict.metric: verdict for verdict in judge(here, Budgets(), base).verdicts}
    assert by_metric["replay-us"].verdict == UNKNOWN
    assert "GPU that was idle" in by_metric["replay-us"].text
    assert by_metric["nodes"].verdict == PASS
    after = replace(base, samples=later)
    assert {verdict.verdict for verdict in judge(here, Budgets(), after).verdicts} == {PASS}


@pytest.mark.parametrize(
    ("field", "there", "here"), [("cpu", "AMD EPYC 9654", "AMD EPYC 7402P"), ("cpus", 64, 16)]
)
def test_another_host_serves_for_what_the_device_alone_takes(field: str, there, here) -> None:
    """A replay is the GPU's work; a capture, and eager code, wait for the host."""
    took = [replace(graph, capture_ns=900_000, instantiate_ns=10_000) for graph in small().graphs]
    run = replace(timed(30, runs=10), graphs=tuple(took))
    measured = measure([run] * 3)
    on = replace(measured.values.environment, **{field: here})
    measured = replace(measured, values=replace(measured.values, environment=on))
    base = replace(measured.values, environment=replace(on, **{field: there}))
    held = from_options({}, ["capture-ms=50%", "eager-us=50%", "speedup=50%"])
    by_metric = {verdict.metric: verdict for verdict in judge(measured, held, base).verdicts}
    for name in ("capture-ms", "eager-us", "speedup"):
        assert (by_metric[name].verdict, by_metric[name].open) == (UNKNOWN, False)
        assert f"{there} in the baseline, {here} here" in by_metric[name].text
    assert by_metric["replay-us"].verdict == PASS
    assert by_metric["nodes"].verdict == PASS
    alike = {
        verdict.metric: verdict.verdict
        for verdict in judge(measured, held, measured.values).verdicts
    }
    assert alike["eager-us"] == alike["speedup"] == alike["capture-ms"] == PASS


def test_another_clock_serves_for_counts_and_not_for_times() -> None:
    here = measure([timed(60, runs=10, clock=Clock((210, 1500, 1500)))])
    base = measure([timed(30, runs=10, clock=Clock((210, 1980, 1980)))]).values
    by_metric = {verdict.metric: verdict for verdict in judge(here, Budgets(), base).verdicts}
    assert (
        "different SM clock: 1980 MHz in the baseline, 1500 MHz here" in by_metric["replay-us"].text
    )


def test_other_options_of_the_capture_are_reported() -> None:
    from cgtool.model.capture import Option

    entry = replace(small().entry, options=(Option("backward", "False"),))
    here = measure([replace(small(), entry=entry)])
    there = replace(entry, options=(Option("backward", "True"),))
    (note,) = judge(here, Budgets(), changed({}, entry=there)).notes
    assert "backward True there, False here" in note


# --- evidence


def test_new_nodes_are_named_from_a_capture_that_serves_as_baseline() -> None:
    """By op and module, wherever the lines have moved to."""
    before = small()
    forward, backward = before.graphs
    extra = tuple(replace(forward.nodes[0], id=len(forward.nodes) + at) for at in range(2))
    moved = tuple(replace(frame, line=frame.line + 100) for frame in before.frames)
    after = replace(
        before,
        graphs=(replace(forward, nodes=(*forward.nodes, *extra)), backward),
        frames=moved,
    )
    judged = judge(
        measure([after]),
        Budgets(),
        measure([before]).values,
        compared=before,
        files=("new.cgt",),
        baseline_file="old.cgt",
    )
    assert judged.notes == ("`cgtool diff old.cgt new.cgt` shows all changes",)
    (verdict,) = (verdict for verdict in judged.verdicts if verdict.metric == "nodes")
    assert verdict.verdict == FAIL
    assert verdict.evidence == ("+2 addmm in layers.0.linear at model.py:112",)
    assert verdict.frame == Frame("/home/me/model.py", 112, "Block.forward")


def test_new_nodes_in_many_modules_are_one_line_an_op() -> None:
    before, after = huge(1000, layers=8), huge(1100, layers=8)
    judged = judge(measure([after]), Budgets(), measure([before]).values, compared=before)
    (verdict,) = (verdict for verdict in judged.verdicts if verdict.metric == "nodes")
    assert verdict.text == "100 more"
    new = [int(line.split()[0]) for line in verdict.evidence]
    assert sum(new) == 100
    assert all(re.search(r" in \d+ modules", line) for line in verdict.evidence[:5])


def test_new_ops_are_named_from_a_baseline_alone() -> None:
    base = changed({"nodes": 10}, ops={**measure([small()]).values.ops, "mm": 1, "sum": 0})
    verdict = only(measure([small()]), budgets(max_increase="nodes=0"), base)
    assert verdict.evidence == ("+1 sum at train.py:7", "+1 mm at model.py:12")


def test_memory_is_explained_by_its_largest_allocations() -> None:
    verdict = only(measure([read(CAPTURES / "transformer.cgt")]), budgets(max_live_mib="60"))
    assert verdict.evidence[0] == "65 MiB: cuBLAS workspace at transformer.py:30"
    assert verdict.frame.file == "samples/transformer.py"


def report(command: str, *findings: Finding, **fields: object) -> Report:
    return Report(
        command,
        Entry("model.py:build", "callable", "/home/me/model.py", 1),
        environment(),
        "2026-01-01T00:00:00+00:00",
        "0.1.0",
        findings,
        **fields,  # type: ignore[arg-type]
    )


def test_findings_are_errors_and_warnings_each_once() -> None:
    sync = Finding("sync-item", "it waits", (Frame("/home/me/model.py", 4, "f"),), phase="forward")
    note = Finding("eager-vs-graph-numeric-noise", "noise", severity="note")
    measured = measure((), [report("check", sync, note), report("check", sync)])
    assert measured.values.counts == {"findings": 1}
    verdict = only(measured, budgets(max_findings="0"))
    assert verdict.evidence == ("error sync-item at model.py:4: it waits",)
    assert verdict.frame == Frame("model.py", 4, "f")


def test_mismatches_are_tensors_that_differ() -> None:
    apart = Comparison("output", "output", "fresh inputs 1", False, largest=0.25)
    nan = Comparison("gradient of w", "gradient", "fresh inputs 1", False)
    same = Comparison("output", "output", "captured inputs", True)
    measured = measure((), [report("verify", comparisons=(apart, nan, same))])
    verdict = only(measured, budgets(max_mismatches="0"))
    assert (verdict.verdict, verdict.measured) == (FAIL, 2)
    assert verdict.evidence == (
        "output, fresh inputs 1: differs by up to 0.25",
        "gradient of w, fresh inputs 1: differs by up to not a number",
    )
    clean = measure((), [report("verify", comparisons=(same,))])
    assert only(clean, budgets(max_mismatches="0")).verdict == PASS
    missed = Finding("sync-item", "work missed the graph", severity="error")
    wrong = measure((), [report("verify", missed, comparisons=(same,))])
    assert only(wrong, budgets(max_mismatches="0")).measured == 1
    noisy = measure(
        (), [report("verify", comparisons=(same,), notes=(Caveat("too-noisy", "eager is"),))]
    )
    assert only(noisy, budgets(max_mismatches="0")).verdict == UNKNOWN


def test_files_are_named_as_the_user_would_from_where_the_entry_was_named() -> None:
    entry = Entry("samples/mlp.py:build", "callable", "/ci/repo/samples/mlp.py", 3)
    assert as_typed(Frame("/ci/repo/samples/mlp.py", 9, "f"), entry).file == "samples/mlp.py"
    assert as_typed(Frame("/ci/repo/lib/net.py", 9, "f"), entry).file == "lib/net.py"
    assert as_typed(Frame("/usr/lib/x.py", 9, "f"), entry).file == "/usr/lib/x.py"
    outside = replace(entry, spec="../mlp.py:build")
    assert as_typed(Frame("/ci/repo/a.py", 9, "f"), outside).file == "/ci/repo/a.py"
    for spec in ("pkg.model:build", "/ci/repo/samples/mlp.py:build"):
        frame = Frame("/ci/repo/lib/net.py", 9, "f")
        assert as_typed(frame, replace(entry, spec=spec)) == frame


def test_entries_are_the_same_by_text_or_as_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert same_entry("a/model.py:build", "./a//model.py:build")
    assert same_entry(f"{tmp_path}/model.py:build", "model.py:build")
    assert same_entry("model.py:build", "model.py:build", tmp_path / "elsewhere")
    assert same_entry("pkg.model:build", "pkg.model:build")
    assert not same_entry("model.py:build", "model.py:other")
    assert not same_entry("model.py:build", "b/model.py:build")
    assert not same_entry("pkg.model:build", "model:build")
