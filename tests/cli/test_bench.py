"""``cgtool bench`` on the command line: what it refuses, and when it has measured enough."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from cgtool.analysis.gate.measured import measure
from cgtool.analysis.timing import stats
from cgtool.analysis.timing.bench import bench_report
from cgtool.analysis.timing.runs import merge
from cgtool.cli import workers
from cgtool.model import capture_file
from cgtool.model.baseline import write as write_baseline
from cgtool.model.jobs import AgainstJob, BenchJob
from cgtool.model.measurements import Clock
from tests.analysis.test_runs import paired
from tests.analysis.test_runs import run as measured

ENTRY = "model.py:build"
BENCH = Path(__file__).resolve().parent.parent.parent / "samples" / "captures" / "mlp-bench.cgt"


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    """No interval decides here, and four thousand resamples take most of the time."""
    monkeypatch.setattr(stats, "RESAMPLES", 400)


@pytest.fixture
def run(cgtool):
    return partial(cgtool, "bench")


class Machine:
    """Stands in for worker processes on a GPU: each run a little faster or slower."""

    def __init__(self):
        self.draw = random.Random(0)
        self.slower, self.spread = 1.0, 0.002
        self.clock = Clock((345, 1980, 1980), other_processes=0)
        self.jobs: list[BenchJob | AgainstJob] = []

    def run(self):
        return measured(50_000 * self.slower * (1 + self.draw.gauss(0, self.spread)),
                        clock=self.clock)  # fmt: skip

    def attempt(self, job, output, _options):
        self.jobs.append(job)
        is_pair = isinstance(job, AgainstJob)
        recorded = paired(self.slower, clock=self.clock) if is_pair else self.run()
        capture_file.write(output, recorded)
        return capture_file.read(output)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """With a baseline of ten runs in base.cgt and base.json."""
    machine = Machine()
    monkeypatch.setattr(workers, "capture_of", machine.attempt)
    monkeypatch.setattr(workers.Measuring, "ahead", lambda _self, count: nullcontext(count))
    base = merge([machine.run() for _ in range(10)])
    capture_file.write(tmp_path / "base.cgt", base)
    write_baseline(tmp_path / "base.json", measure([base]).values)
    return machine


# --- enough


@pytest.mark.parametrize("baseline", ["base.cgt", "base.json"])
@pytest.mark.parametrize(
    ("slower", "code", "word", "runs"), [(1.0, 0, "not slower", 3), (1.03, 1, "slower", 6)]
)
def test_it_measures_until_it_can_tell(run, machine, baseline, slower, code, word, runs):
    machine.slower = slower
    exit_code, out, err = run(ENTRY, "--baseline", baseline)
    assert (exit_code, err) == (code, "")
    assert f" {word}" in out
    assert f"10 and {runs} runs" in out
    assert len(machine.jobs) == runs


def test_an_undecided_comparison_is_measured_to_the_limit_and_exits_5(run, machine):
    machine.spread = 0.05
    code, out, _ = run(ENTRY, "--baseline", "base.cgt", "--max-runs", 6)
    assert code == 5
    assert "cannot tell" in out
    assert len(machine.jobs) == 6


def test_after_the_time_is_over_no_run_is_begun(run, machine, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(workers.time, "monotonic", lambda: next(clock))
    machine.spread = 0.05
    code, out, _ = run(ENTRY, "--baseline", "base.cgt", "--max-seconds", 150)
    assert code == 5
    assert "the limit of 150 s was reached after 2 runs" in out
    assert len(machine.jobs) == 2


def test_runs_to_save_are_those_that_nothing_disturbed(run, machine, monkeypatch, tmp_path):
    shared, quiet = Clock((345, 1200, 1200), other_processes=1), machine.clock
    clocks = iter([quiet, shared])
    real = machine.attempt

    def attempt(*arguments, **options):
        machine.clock = next(clocks, quiet)
        return real(*arguments, **options)

    monkeypatch.setattr(workers, "capture_of", attempt)
    code, out, _ = run(ENTRY, "--runs", 4, "--save", "saved.cgt")
    assert code == 0
    assert "1 of 4 runs are left out of the times: 1 other process" in " ".join(out.split())
    assert {sample.run for sample in capture_file.read(tmp_path / "saved.cgt").bench.samples} == {
        0,
        1,
        2,
    }
    monkeypatch.setattr(workers, "capture_of", real)
    assert run(ENTRY, "--baseline", "saved.cgt")[0] != 2


def test_so_many_runs_as_there_is_time_for(run, machine, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(workers.time, "monotonic", lambda: next(clock))
    code, out, _ = run(ENTRY, "--runs", 9, "--max-seconds", 150)
    assert code == 0
    assert len(machine.jobs) == 2
    assert "the limit of 150 s was reached after 2 runs" in out


def test_runs_begin_the_schedule(run, machine):
    assert run(ENTRY, "--baseline", "base.cgt", "--runs", 7)[0] == 0
    assert len(machine.jobs) == 7


def test_the_tolerance_is_the_users(run, machine):
    machine.slower = 1.03
    assert run(ENTRY, "--baseline", "base.cgt", "--max-regression", "5%")[0] == 0
    assert run(ENTRY, "--baseline", "base.cgt", "--max-regression", "2%")[0] == 1


def test_another_clock_ends_it_after_one_run(run, machine):
    machine.clock = Clock((345, 1200, 1200))
    code, out, _ = run(ENTRY, "--baseline", "base.cgt")
    assert code == 5
    assert "not compared" in out
    assert "1980 MHz in the baseline, 1200 MHz here" in out
    assert len(machine.jobs) == 1


def test_a_run_on_a_disturbed_gpu_is_made_again(run, machine, monkeypatch):
    shared, quiet = Clock((345, 1200, 1200), other_processes=1), machine.clock
    clocks = iter([shared, shared])
    real = machine.attempt

    def attempt(*arguments, **options):
        machine.clock = next(clocks, quiet)
        return real(*arguments, **options)

    monkeypatch.setattr(workers, "capture_of", attempt)
    code, out, _ = run(ENTRY, "--baseline", "base.cgt")
    # One run that is left says nothing of how runs spread here.
    assert (code, len(machine.jobs)) == (0, 6)
    assert "10 and 4 runs" in out
    assert "2 of 6 runs are left out of the times: 1 other process used" in " ".join(out.split())
    clocks = iter([shared] * 99)
    code, out, _ = run(ENTRY, "--baseline", "base.cgt", "--max-runs", 4)
    assert (code, len(machine.jobs)) == (5, 6 + 4)
    assert "1 other process used the GPU here" in out
    assert "undecided after 4 runs, and --max-runs allows no more" in " ".join(out.split())


@pytest.mark.parametrize("most", [2, 3, 4, 6, 12])
@pytest.mark.parametrize("slower", [1.0, 1.004, 1.008, 1.011, 1.014, 1.03])
def test_the_gate_answers_the_same_from_the_same_runs(cgtool, machine, monkeypatch, slower, most):
    """At any distance from what is allowed, after as many runs, with the same interval."""
    machine.slower = slower
    base = ["--baseline", "base.json", "--max-runs", most, "--format", "json"]
    answers = []
    for command in ("bench", "gate"):
        machine.draw, machine.jobs = random.Random(5), []
        code, out, _ = cgtool(command, ENTRY, *base)
        if command == "bench":
            (verdict,) = json.loads(out)["verdicts"]
            answer = verdict["answer"]
            figures = [answer["ratio"], answer["low"], answer["high"], answer["needed"] or None]
        else:
            (verdict,) = (
                verdict
                for verdict in json.loads(out)["targets"][0]["verdicts"]
                if verdict["metric"] == "replay-us"
            )
            figures = [
                verdict["ratio"],
                verdict["ratio_low"],
                verdict["ratio_high"],
                verdict["more_runs"],
            ]
        answers.append(
            (code, len(machine.jobs), [figure and round(figure, 9) for figure in figures])
        )
    assert answers[0] == answers[1]


def test_all_runs_are_saved_and_serve_as_a_baseline(run, machine, tmp_path):
    assert run(ENTRY, "--runs", 4, "--save", "four.cgt")[0] == 0
    saved = capture_file.read(tmp_path / "four.cgt")
    assert {sample.run for sample in saved.bench.samples} == {0, 1, 2, 3}
    code, out, _ = run(ENTRY, "--baseline", "four.cgt", "--format", "json")
    (verdict,) = json.loads(out)["verdicts"]
    assert (code, verdict["answer"]["verdict"]) == (0, "not-slower")
    assert verdict["answer"]["base"] == 4


def test_one_run_is_as_it_was(run, machine):
    code, out, _ = run(ENTRY)
    assert code == 0
    assert "Replay times compared with" not in out
    assert len(machine.jobs) == 1


def test_a_replay_with_two_speeds_is_reported(run, machine, monkeypatch):
    quick = measured(1_412_000.0, captures=1)
    eager, replay = quick.bench.samples
    times = tuple(each * (1.091 if number % 10 > 5 else 1.0) for number, each in
                  enumerate(replay.device_ns))  # fmt: skip
    bench = replace(quick.bench, samples=(eager, replace(replay, device_ns=times)))
    monkeypatch.setattr(machine, "run", lambda: replace(quick, bench=bench))
    code, out, _ = run(ENTRY)
    assert code == 0
    assert "replay forward has two speeds: 1.41 ms in 18 rounds and 1.54 ms in 12 (+9.1%)" in (
        " ".join(out.split())
    )
    (levels,) = json.loads(run(ENTRY, "--format", "json")[1])["levels"]
    assert (levels["low_rounds"], levels["high_rounds"], levels["changes"]) == (18, 12, 5)


# --- another entry


@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.005, 1)])
def test_pairs_are_judged_from_one_process(run, machine, slower, code):
    machine.slower = slower
    exit_code, out, _ = run(ENTRY, "--against", "other.py:build")
    assert exit_code == code
    assert "Replay times compared with other.py:build" in out
    assert "Eager and replay" not in out
    (job,) = machine.jobs
    assert (job.against, job.options.precision) == ("other.py:build", 0.0005)


# --- refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--baseline", "none.json"], "no such file"),
        (["--baseline", "base.cgt", "--against", "other.py:build"], "cannot be used together"),
        (["--max-regression", "3%"], "add --baseline FILE or --against"),
        (["--against", "other.py:build", "--runs", "3"], "measures in one"),
        (["--save", "none/run.cgt"], "cannot write"),
        (["--baseline", "untimed.cgt"], "has no times"),
        (["--baseline", "other.cgt"], "is a baseline of other.py:build, not of model.py:build"),
        (["--baseline", "torn.json"], "not a readable baseline"),
    ],
)
def test_wrong_use_is_reported_before_anything_is_measured(
    run, machine, tmp_path, arguments, words
):
    from msgspec.structs import replace

    result = machine.run()
    capture_file.write(tmp_path / "untimed.cgt", replace(result, bench=None))
    entry = replace(result.entry, spec="other.py:build")
    capture_file.write(tmp_path / "other.cgt", replace(result, entry=entry))
    (tmp_path / "torn.json").write_text((tmp_path / "base.json").read_text()[:200])
    code, out, err = run(ENTRY, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert machine.jobs == []


@pytest.mark.parametrize("text", ["3", "0.03", "3ms", "-1%", "nan%", "inf", "%", "", "3 %%"])
def test_a_wrong_unit_is_reported_with_the_right_ones(run, machine, text):
    code, _, err = run(ENTRY, "--baseline", "base.cgt", f"--max-regression={text}")
    assert code == 2
    assert "--max-regression" in err
    assert "write 3%" in err or "write 2%" in err or "N%" in err
    assert machine.jobs == []


def test_a_phase_that_the_baseline_has_not(run, machine, monkeypatch):
    monkeypatch.setattr(machine, "run", lambda: measured(50_000.0, phase="step"))
    code, _, err = run(ENTRY, "--baseline", "base.cgt")
    assert code == 2
    assert "has times of forward, but step was measured" in err


@pytest.mark.parametrize("more", [[], ["--against", "model.py:other"]])
def test_without_a_gpu_it_exits_3(run, tmp_path, more):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (tmp_path / "model.py").write_text("def build(device):\n    return None\n")
    code, _, err = run(ENTRY, *more)
    assert code == 3
    assert "bench needs a GPU (" in err


def test_the_comparison_fits_a_terminal_of_80_columns(run, machine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(ENTRY, "--baseline", "base.cgt")
    shown = out.split("Replay times compared with")[1].splitlines()
    *_, row, runs = [line.split() for line in shown]
    assert row[:3] == ["forward", "not", "slower"]
    assert runs == ["measured", "by", "10", "and", "3", "runs"]


def test_fewer_nodes_than_eager_launches_prove_nothing():
    """Eager code may launch what has no node and changes no result: cuDNN for an LSTM, in its
    backward."""
    recorded = capture_file.read(BENCH)
    graphs = [replace(each, eager_launches=2 * len(each.nodes)) for each in recorded.graphs]
    fewer = bench_report(replace(recorded, graphs=tuple(graphs)))
    assert fewer.findings == bench_report(recorded).findings
