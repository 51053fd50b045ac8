"""Everything that needs a GPU: `python benchmarks/on_gpu.py OUTDIR [--only NAME[=ARGUMENTS],...]`.

Runs several jobs at a time, each with a limit, and those that measure times last, one by one with
nothing beside them. What a job printed and how it ended is in OUTDIR/log.txt and OUTDIR/jobs.jsonl
as soon as it ends, and the files that it left in $OUT are in OUTDIR/files.zip, so a run that is
killed loses only what was still running. ``--minutes`` ends the run in time: jobs that still run
then are killed, and what they had printed is kept. ``--only "corpus=streams --jobs 2"`` runs
one job with more arguments. Exit code 1 if a job failed, was killed or not started.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CGTOOL = ("-m", "cgtool")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "--durations=15")
AT_ONCE = ("-n", "{jobs}", "--dist", "worksteal") if importlib.util.find_spec("xdist") else ()
TIMED_TESTS = (
    *(f"tests/gpu/test_{name}.py" for name in ("bench", "gate", "profile", "run_times", "times")),
    "tests/gpu/test_annotate.py",
    "tests/pytest_plugin/test_ci_page.py",
    "tests/pytest_plugin/test_fixture.py",
)
"""They judge times, which cgtool does only on a GPU that nobody else uses."""


def gpu_tests() -> list[str]:
    """Files with other tests for a GPU. Those of findings are a job of their own."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = [str(file.relative_to(ROOT)) for file in files if "mark.gpu" in file.read_text()]
    return [file for file in marked if file not in (*TIMED_TESTS, "tests/findings/test_pages.py")]


class Job(NamedTuple):
    """A command of this Python. ``{jobs}`` is how many processes it may start, ``{out}`` the folder
    for its files."""

    command: tuple[str, ...]
    seconds: int
    """It is killed after this."""
    alone: bool = False
    """It measures times: nothing else may run."""


JOBS = {
    "corpus": Job(
        ("benchmarks/corpus.py", "--jobs", "{jobs}", "--save", "{out}/corpus.jsonl"), 1200
    ),
    "findings": Job(
        ("benchmarks/findings.py", "--device", "gpu", "--jobs", "{jobs}",
         "--save", "{out}/findings.json"), 900,
    ),
    "tests": Job((*PYTEST, *AT_ONCE, *gpu_tests()), 900),
    "opinfo": Job(
        ("benchmarks/opinfo.py", "--truth", "benchmarks/opinfo_sample.jsonl", "--device", "gpu",
         "--jobs", "{jobs}", "--save", "{out}/opinfo.jsonl"), 900,
    ),
    **{
        f"alarms-{package}": Job(
            ("benchmarks/verify_alarms.py", package, "--runs", "10", "--jobs", "{jobs}",
             "--save", f"{{out}}/alarms-{package}.jsonl"), 1200,
        )
        for package in ("transformers", "timm", "torchvision", "torch_geometric")
    },
    "places": Job(
        ("benchmarks/models.py", "--commands", "capture", "--jobs", "{jobs}",
         "--markdown", "{out}/places.md"), 600,
    ),
    "compiled-lines": Job(("benchmarks/compiled_lines.py",), 600),
    "nodes": Job(("benchmarks/gpu.py", "nodes", "ops"), 300),
    "marks": Job(
        ("benchmarks/corpus.py", "--truth", "--jobs", "{jobs}", "--save", "{out}/marks.jsonl"), 1200
    ),
    "doctor": Job((*CGTOOL, "doctor"), 60),
    "engine": Job(
        (*CGTOOL, "run", "--times", "-o", "{out}/engine.cgt", "samples/engine.py"), 60, alone=True
    ),
    "timed-tests": Job((*PYTEST, *TIMED_TESTS), 600, alone=True),
    "captures": Job(("benchmarks/on_gpu.py", "{out}", "--captures"), 300, alone=True),
    "overhead": Job(("benchmarks/run_overhead.py",), 600, alone=True),
    "overhead-times": Job(("benchmarks/run_overhead.py", "--times"), 600, alone=True),
    "run-step": Job(("benchmarks/run_step.py",), 300, alone=True),
    "back-to-back": Job(("benchmarks/back_to_back.py",), 600, alone=True),
    "recorder": Job(("benchmarks/gpu.py", "recorder", "whole"), 300, alone=True),
    "node-times": Job(
        ("benchmarks/node_times.py", "--json", "{out}/node_times.json"), 600, alone=True
    ),
    "annotate": Job(
        ("benchmarks/annotated_times.py", "--json", "{out}/annotated_times.json"), 600, alone=True
    ),
    "prefix-times": Job(
        ("benchmarks/prefix_times.py", "--json", "{out}/prefix_times.json"), 600, alone=True
    ),
}  # fmt: skip
"""In the order in which they start; those that are ``alone`` come after all others."""


def capture_samples(folder: Path) -> int:
    """Record the captures of samples/captures again, by the command that their names tell."""
    failed = 0
    for before in sorted((ROOT / "samples" / "captures").glob("*.cgt")):
        sample = before.stem.removeprefix("profile-").removesuffix("-bench")
        timed = "profile" if before.stem.startswith("profile-") else "bench"
        command, option = ("capture", "-o") if sample == before.stem else (timed, "--save")
        words = [command, f"samples/{sample}.py:build", "-q", option, str(folder / before.name)]
        print("cgtool", *words[:2], flush=True)
        failed += subprocess.run([sys.executable, *CGTOOL, *words], check=False).returncode != 0
    return failed


class Outcome(NamedTuple):
    """How a job ended."""

    job: str
    exit: int | None
    """None if it was killed, or not started."""
    seconds: float
    why: str = ""


class Running:
    """A job in a process group of its own."""

    def __init__(self, name: str, job: Job, arguments: Sequence[str], processes: int) -> None:
        self.name, self.job = name, job
        self._folder = tempfile.TemporaryDirectory(prefix="on-gpu-", ignore_cleanup_errors=True)
        self._out = Path(self._folder.name) / "out"
        self._out.mkdir()
        self._printed = Path(self._folder.name) / "printed"
        words = [word.format(jobs=processes, out=self._out) for word in job.command]
        self._command = [sys.executable, *words, *arguments]
        environment = {**os.environ, "OUT": str(self._out), "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        )
        if not job.alone:
            # Threads of many processes would wait for each other.
            environment.setdefault("OMP_NUM_THREADS", "1")
        self.began = time.monotonic()
        with self._printed.open("wb") as file:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                cwd=ROOT, env=environment, start_new_session=True,
            )  # fmt: skip

    def end(self, outdir: Path, why: str) -> Outcome:
        """Kill what is left of it, and keep what it printed and its files. ``why``: the reason, if
        it has not ended by itself."""
        if self.process.poll() is None:
            # pytest prints the failures so far.
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        seconds = round(time.monotonic() - self.began, 1)
        outcome = Outcome(self.name, None if why else code, seconds, why)
        with (outdir / "log.txt").open("ab") as log:
            log.write(f"\n===== {text_of(outcome)}\n$ {shlex.join(self._command)}\n".encode())
            log.write(self._printed.read_bytes())
        with zipfile.ZipFile(outdir / "files.zip", "a", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(self._out.rglob("*")):
                if file.is_file():
                    archive.write(file, f"{self.name}/{file.relative_to(self._out)}")
        with (outdir / "jobs.jsonl").open("a") as lines:
            print(json.dumps(outcome._asdict()), file=lines)
        self._folder.cleanup()
        print(text_of(outcome), flush=True)
        return outcome


def text_of(outcome: Outcome) -> str:
    ended = outcome.why if outcome.exit is None else f"exit {outcome.exit}"
    return f"{outcome.job:24}{outcome.seconds:>8.1f} s   {ended}"


def run(wanted: Mapping[str, Sequence[str]], outdir: Path, at_once: int, seconds: float) -> int:
    """Run jobs, each with more arguments, for at most so long; 1 if one of them failed."""
    deadline = time.monotonic() + seconds
    processes = max(1, (os.cpu_count() or 1) // max(1, min(at_once, len(wanted))))
    waiting = sorted(wanted, key=lambda name: JOBS[name].alone)
    running: list[Running] = []
    outcomes: list[Outcome] = []
    why = "killed with the run"
    try:
        while waiting or running:
            now = time.monotonic()
            for each in list(running):
                is_late = now > min(deadline, each.began + each.job.seconds)
                if each.process.poll() is not None or is_late:
                    running.remove(each)
                    in_time = each.process.returncode is not None
                    limit = "" if in_time else f"killed after {now - each.began:.0f} s"
                    outcomes.append(each.end(outdir, limit))
            if now > deadline:
                why = "not started in time"
                break
            while waiting and len(running) < (1 if JOBS[waiting[0]].alone else at_once):
                name = waiting.pop(0)
                running.append(Running(name, JOBS[name], wanted[name], processes))
            time.sleep(0.1)
    finally:
        outcomes += [each.end(outdir, why) for each in running]
        outcomes += [Outcome(name, None, 0.0, why) for name in waiting]
        table = "\n".join(map(text_of, outcomes))
        with (outdir / "log.txt").open("a") as log:
            print(f"\n===== all\n{table}", file=log)
        print(f"\n{table}")
    return int(any(outcome.exit != 0 for outcome in outcomes))


def stop(number: int, _frame: types.FrameType | None) -> None:
    """A signal ends the run as an exception does."""
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outdir", type=Path, nargs="?", default=Path("on-gpu"))
    parser.add_argument("--only", metavar="NAME[=ARGUMENTS],...", default=",".join(JOBS))
    parser.add_argument("--jobs", type=int, default=4, help="jobs at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of the whole run")
    parser.add_argument("--list", action="store_true", help="print the jobs and their limits")
    parser.add_argument("--captures", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.list:
        for name, job in JOBS.items():
            print(f"{name:24}{job.seconds:>6} s  {'alone' if job.alone else '':7}", *job.command)
        return 0
    if given.captures:
        return capture_samples(given.outdir)
    parts = [part.partition("=") for part in given.only.split(",")]
    wanted = {name.strip(): shlex.split(arguments) for name, _, arguments in parts}
    if unknown := wanted.keys() - JOBS.keys():
        parser.error(f"no job is called {', '.join(sorted(unknown))}; --list shows them")
    given.outdir.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, stop)
    return run(wanted, given.outdir, given.jobs, 60 * given.minutes)


if __name__ == "__main__":
    sys.exit(main())
