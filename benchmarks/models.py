"""`check`, `capture`, `verify` over other people's models: `python benchmarks/models.py [NAME...]`.

Each command runs as a whole process, as a user runs it. NAME is a model or a package of
`model_zoo.py`; `--device` and `--jobs` are for all of them, `--markdown FILE` writes the table too.
Exit code 1 when a command ended in a way that is no answer (a crash of cgtool's, a time-out).

A model that does not capture is no failure of this script: what is shown for it is the innermost
line that was blamed, with its source text, so that a look into the library can confirm it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import linecache
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from model_zoo import PACKAGES  # noqa: E402

COMMANDS = ("check", "capture", "verify")
ANSWERS = (0, 1, 4, 5)
SECONDS = 600


@dataclass
class Answer:
    """The result of one command for one model."""

    code: int
    seconds: float
    report: dict[str, Any]
    message: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.report.get("findings", ()))


@dataclass
class Row:
    """One model."""

    package: str
    name: str
    answers: dict[str, Answer]

    @property
    def result(self) -> str:
        codes = {command: answer.code for command, answer in self.answers.items()}
        broken = [f"{command}: exit code {n}" for command, n in codes.items() if n not in ANSWERS]
        if broken:
            return ", ".join(broken)
        if codes.get("capture"):
            return "refused"
        verified = {0: "verified", 1: "differs from eager", 5: "cannot tell", None: "not verified"}
        verdict = verified.get(codes.get("verify"), "not verified")
        return f"captured, {verdict}" + (", hazards" if codes.get("check") else "")

    @property
    def coverage(self) -> str:
        """``1,146 nodes: op 100%, ...`` of the capture: nodes whose place is known."""
        known = (
            self.answers["capture"].report.get("coverage") if "capture" in self.answers else None
        )
        if not known or not known["nodes"]:
            return ""
        shares = {name: known[name] / known["nodes"] for name in ("op", "module", "line")}
        if known["backward"]:
            shares["forward line"] = known["forward_line"] / known["backward"]
        # Rounded down: 100% is all of them.
        texts = [f"{name} {int(1000 * share) / 10:g}%" for name, share in shares.items()]
        return f"{known['nodes']:,} nodes: {', '.join(texts)}"

    @property
    def places(self) -> Iterator[str]:
        """``code file:line source text`` of each thing that was found, once."""
        places = set()
        for answer in self.answers.values():
            texts = [_place(finding) for finding in answer.findings]
            if not texts and answer.code in (4, 70):
                texts = [answer.message]
            for text in texts:
                if text not in places:
                    places.add(text)
                    yield text


def _place(finding: dict[str, Any]) -> str:
    severity = finding.get("severity") or ""
    said = " ".join(word for word in (finding["code"], severity) if word)
    if not finding.get("frames"):
        return f"{said}: {finding['reason']}"
    file, line = finding["frames"][0][:2]
    short = file.partition("-packages/")[2] or Path(file).name
    return f"{said} at {short}:{line}: {linecache.getline(file, line).strip()}"


def ask(command: str, name: str, device: str | None) -> Answer:
    """Run one command."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "cgtool.cli.app", command]
        line += [f"{HERE / 'model_zoo.py'}:{name}", "--format", "json", "--seed", "0"]
        if command == "capture":
            line += ["--output", str(Path(folder) / "one.cgt")]
        else:
            line += ["--quiet"]
        if device is not None:
            line += ["--device", device]
        start = time.perf_counter()
        try:
            run = subprocess.run(line, check=False, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return Answer(-1, SECONDS, {}, "time-out")
        seconds = time.perf_counter() - start
    try:
        report = json.loads(run.stdout)
    except ValueError:
        report = {}
    message = next((line for line in run.stderr.splitlines() if line.startswith("cgtool:")), "")
    if run.returncode not in ANSWERS:
        print(run.stderr, file=sys.stderr)
    return Answer(run.returncode, seconds, report, message)


def models(wanted: list[str]) -> Iterator[tuple[str, str]]:
    """(package, model) of what is wanted and installed."""
    for package, names in PACKAGES.items():
        chosen = [name for name in names if not wanted or package in wanted or name in wanted]
        if chosen and importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: {len(chosen)} models left out")
            continue
        yield from ((package, name) for name in chosen)


def markdown(rows: list[Row]) -> str:
    """The table that the documentation shows."""
    lines = ["| package | model | result | known | line |", "|---|---|---|---|---|"]
    for row in rows:
        places = "<br>".join(place.replace("|", "\\|") for place in row.places)
        lines.append(f"| {row.package} | {row.name} | {row.result} | {row.coverage} | {places} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print a row for each model; 1 when a command gave no answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()

    def check_model(model: tuple[str, str]) -> Row:
        package, name = model
        answers = {each: ask(each, name, options.device) for each in options.commands}
        row = Row(package, name, answers)
        times = "  ".join(f"{each} {said.seconds:.1f} s" for each, said in row.answers.items())
        lines = [f"{package:16} {name:18} {row.result:32} {times}", row.coverage, *row.places]
        print("\n    ".join(lines), flush=True)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(check_model, models(options.names)))
    if options.markdown is not None:
        options.markdown.write_text(markdown(rows))
    answered = [all(said.code in ANSWERS for said in row.answers.values()) for row in rows]
    good = sum(row.result == "captured, verified" for row in rows)
    print(f"{len(rows)} models, {good} captured and verified without a finding")
    return 0 if all(answered) else 1


if __name__ == "__main__":
    sys.exit(main())
