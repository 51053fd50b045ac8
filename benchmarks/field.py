"""Is `check` right on packages that nobody here wrote? `python benchmarks/field.py [--only NAME]`.

Each program in benchmarks/field drives the CUDA graph code of one package with small random
models, and says in its head (inline script metadata, as in PEP 723) which package, what to install,
and which findings are true. For each program: an environment of its own in ``--cache``, which has
the pinned packages and, by a ``.pth`` file, PyTorch and cgtool's dependencies of the Python that
runs this; then the program alone, `cgtool check PROGRAM` and `cgtool run PROGRAM`.

On the simulated device, "alone" is the time that `cgtool run` gives for the program, which needs
that device to run at all. ``--download DIR`` fills a folder of wheels, and ``--wheels DIR``
installs from such a folder, without a network. Exit code 1 if a finding is false or missing, or if
something crashed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "benchmarks" / "field"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cgtool-field"
OPTIONS = ("--no-deps", "--no-build-isolation", "--quiet")
"""Of pip."""
FOUND_OR_NOT = (0, 1)
"""Exit codes of `check` that are an answer."""
TIMED_OUT = -int(signal.SIGALRM)


@dataclass(frozen=True)
class Program:
    """One program, and what its head says."""

    path: Path
    package: str
    version: str
    requirements: tuple[str, ...]
    variables: dict[str, str]
    """Environment variables, for the installation and for the program."""
    true: tuple[dict[str, str], ...]
    """True findings: ``code``, and ``file``, the end of a path, and ``function`` of a frame."""
    meant: tuple[dict[str, str], ...]
    """Findings that are literally true of code that means it: neither false nor missing."""

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass
class Ended:
    """A command: its output, its exit code, and how long it took."""

    code: int
    out: str
    err: str
    wall_s: float


@dataclass
class Outcome:
    """The measurements of one program."""

    name: str
    package: str
    version: str
    program_s: float | None = None
    check_s: float | None = None
    captured: str = ""
    codes: dict[str, int] = field(default_factory=dict)
    """Exit codes of the commands."""
    expected: list[dict[str, str]] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)
    """Findings that are true, or meant."""
    false: list[dict[str, Any]] = field(default_factory=list)
    """Errors and warnings that are not."""
    missing: list[dict[str, str]] = field(default_factory=list)
    crash: str = ""

    @property
    def ok(self) -> bool:
        return not (self.false or self.missing or self.crash)


def read_program(path: Path) -> Program:
    """The program with the metadata of its head."""
    head: list[str] = []
    for line in path.read_text().splitlines()[1:]:
        if line == "# ///":
            break
        head.append(line.removeprefix("#").removeprefix(" "))
    data = tomllib.loads("\n".join(head))
    table = data["tool"]["field"]
    return Program(
        path,
        table["package"],
        table["version"],
        tuple(data["dependencies"]),
        table.get("variables", {}),
        tuple(table.get("true", ())),
        tuple(table.get("meant", ())),
    )


def execute(command: list[str], limit_s: float, **options: Any) -> Ended:
    """Run a command, and end it and its children when its time is over."""
    begin = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        process = subprocess.Popen(
            command, stdout=out, stderr=err, start_new_session=True, **options
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = TIMED_OUT
        wall_s = time.perf_counter() - begin
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read(), err.read(), wall_s)


def pip(arguments: list[str], program: Program, wheels: Path | None = None) -> None:
    """Run pip of this Python, which takes packages from a folder of ``wheels`` if it is given one.
    Exits with its message if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels.resolve())} if wheels else {}
    ended = execute(command, 1200, env={**os.environ, **program.variables, **offline})
    if ended.code:
        sys.exit(f"{program.name}: pip failed\n{ended.err[-2000:]}")


def environment_of(program: Program, cache: Path, wheels: Path | None) -> Path:
    """The Python of the program's environment, which is made if it is not there."""
    places = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    key = repr((sys.version, places, program.requirements, program.variables))
    folder = cache / f"{program.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "base.pth").write_text("".join(f"{path}\n" for path in places))
    if program.requirements:
        install = ["--python", str(python), "install", *OPTIONS, *program.requirements]
        pip(install, program, wheels)
    ready.touch()
    return python


def location(finding: dict[str, Any]) -> str:
    """The innermost line, which may be of the package."""
    file, line, function = (*finding["frames"], ["?", 0, "?"])[0]
    return f"{Path(file).parent.name}/{Path(file).name}:{line} in {function}"


def matches(finding: dict[str, Any], true: dict[str, str]) -> bool:
    """Whether the finding is the true one: its code, with the file and function in its stack."""
    return finding["code"] == true["code"] and any(
        frame[0].endswith(true["file"]) and frame[2].split(".")[-1] == true["function"]
        for frame in finding["frames"]
    )


def judge(program: Program, outcome: Outcome, findings: Sequence[dict[str, Any]]) -> None:
    """Sort the findings of `check` or of `run` into true and false ones."""
    for finding in findings:
        kept = {key: finding.get(key) for key in ("code", "severity", "reason", "evidence")}
        kept["at"] = location(finding)
        known = [each for each in (*program.true, *program.meant) if matches(finding, each)]
        if known:
            outcome.found.append(kept)
            outcome.missing = [each for each in outcome.missing if each not in known]
        elif finding["severity"] != "note":
            outcome.false.append(kept)


def measure(program: Program, python: Path, device: str | None, limit_s: float) -> Outcome:
    """Run the program alone, `check` and `run`."""
    outcome = Outcome(program.name, program.package, program.version)
    outcome.expected, outcome.missing = list(program.true), list(program.true)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, **program.variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    chosen = ["--device", device] if device else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:

        def command(name: str, *arguments: str) -> Ended:
            line = [str(python), *arguments, str(program.path)]
            ended = execute(line, limit_s, cwd=folder, env=env)
            outcome.codes[name] = ended.code
            bad = ended.code not in (FOUND_OR_NOT if name == "check" else (0,))
            if bad and not outcome.crash:
                why = "out of time" if ended.code == TIMED_OUT else f"exit code {ended.code}"
                outcome.crash = f"{name}: {why}: {ended.err.strip()[-1500:]}"
            return ended

        report = Path(folder) / "check.json"
        checked = command(
            "check", "-m", "cgtool", "check", *chosen, "--format", "json", "-o", str(report)
        )
        outcome.check_s = checked.wall_s
        ran = command("run", "-m", "cgtool", "run", *chosen, "--format", "json")
        if report.exists():
            data = json.loads(report.read_text())
            outcome.captured = "; ".join(data["looked_at"])
            if program.package == "torch":
                outcome.version = data["environment"]["torch"]
            judge(program, outcome, data["findings"])
        ledger = json.loads(ran.out[ran.out.index('{\n  "schema"') :]) if not ran.code else {}
        judge(program, outcome, ledger.get("findings", ()))
        if ledger.get("simulated", device == "simulated"):
            outcome.program_s = ledger["wall_ns"] / 1e9 if ledger else None
        else:
            outcome.program_s = command("alone").wall_s
    return outcome


HEADINGS = (
    *("program", "package", "version", "program", "check", "ratio", "run again"),
    *("true findings", "false"),
)


def run_again(looked_at: str) -> str:
    """``2 of 4``: captures whose code ran again as replays began."""
    captures = re.search(r"(\d+) captures?", looked_at)
    again = re.search(r"(?<!not run again: )the code of (\d+) graphs?, run again", looked_at)
    return f"{again[1] if again else 0} of {captures[1]}" if captures else ""


def print_table(outcomes: list[Outcome]) -> None:
    """As Markdown, one row for each program."""
    print(f"| {' | '.join(HEADINGS)} | crash |")
    print("|---" * (len(HEADINGS) + 1) + "|")
    for each in outcomes:
        ratio = each.check_s / each.program_s if each.check_s and each.program_s else None
        cells = [
            each.name,
            each.package,
            each.version,
            f"{each.program_s:.1f} s" if each.program_s else "",
            f"{each.check_s:.1f} s" if each.check_s else "",
            f"{ratio:.1f}" if ratio else "",
            run_again(each.captured),
            f"{len(each.expected) - len(each.missing)} of {len(each.expected)}",
            str(len(each.false)),
            each.crash.partition(":")[2].strip().partition(":")[0],
        ]
        print(f"| {' | '.join(cells)} |")
    false = sum(len(each.false) for each in outcomes)
    missing = sum(len(each.missing) for each in outcomes)
    crashed = sum(bool(each.crash) for each in outcomes)
    print(f"\n{false} false, {missing} missing, {crashed} of {len(outcomes)} crashed")


def print_details(outcome: Outcome) -> None:
    """The findings behind a row of the table."""
    print(f"{outcome.name}: {outcome.captured}, exit codes {outcome.codes}", flush=True)
    for kind, findings in (("true", outcome.found), ("FALSE", outcome.false)):
        for finding in findings:
            print(f"  {kind} {finding['code']} at {finding['at']}: {finding['reason']}")
    for each in outcome.missing:
        print(f"  MISSING {each['code']} in {each['file']}, {each['function']}")
    if outcome.crash:
        print(f"  CRASH {outcome.crash}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a program or package")
    parser.add_argument("--device", help="cuda or simulated; a GPU if there is one")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="per command")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for the environments")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install from this folder")
    parser.add_argument("--download", type=Path, metavar="DIR", help="wheels to this folder; end")
    parser.add_argument("--save", type=Path, metavar="FILE", help="one JSON line for each program")
    given = parser.parse_args()
    programs = [read_program(path) for path in sorted(PROGRAMS.glob("*_*.py"))]
    if given.only:
        programs = [each for each in programs if {each.name, each.package} & set(given.only)]
    if not programs:
        parser.error(f"there is no program {', '.join(given.only)}")
    if given.download:
        for program in programs:
            target = ["--wheel-dir", str(given.download.resolve())]
            if program.requirements:
                pip(["wheel", *OPTIONS, *target, *program.requirements], program)
        return
    outcomes = []
    with Path(given.save or os.devnull).open("a") as file:
        for program in programs:
            python = environment_of(program, given.cache.resolve(), given.wheels)
            outcomes.append(measure(program, python, given.device, given.limit))
            print(json.dumps(asdict(outcomes[-1])), file=file, flush=True)
            print_details(outcomes[-1])
    print_table(outcomes)
    sys.exit(int(not all(each.ok for each in outcomes)))


if __name__ == "__main__":
    main()
