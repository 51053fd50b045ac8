"""Run scripts under ``cgtool check`` on the simulated device, and read what was found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"# <- ([\w-]+)")


@dataclass(frozen=True)
class Outcome:
    """What ``cgtool check`` says of one script."""

    findings: frozenset[tuple[str, int | None]]
    """Code and line."""
    reasons: tuple[str, ...]
    looked: tuple[str, ...]
    failure: str | None
    failed_at: int | None = None
    """Line of the script."""

    @property
    def lines(self) -> list[int | None]:
        """Of the findings and of the failure."""
        return [*(line for _, line in self.findings), self.failed_at]


def marks(source: str) -> frozenset[tuple[str, int]]:
    """(code, line) of each ``# <- CODE``."""
    return frozenset(
        (match[1], number)
        for number, line in enumerate(source.splitlines(), 1)
        for match in _MARK.finditer(line)
    )


def check_all(jobs: dict[Path, dict[str, str]]) -> dict[Path, Outcome]:
    """Check scripts, each with its settings of the environment."""
    answer = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("forked.py"))],
        input=json.dumps({str(path): settings for path, settings in jobs.items()}),
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        Path(path): Outcome(
            frozenset((code, line) for code, line, _ in outcome["findings"]),
            tuple(reason for _, _, reason in outcome["findings"]),
            tuple(outcome["looked"]),
            outcome["failure"],
            outcome["failed_at"],
        )
        for path, outcome in json.loads(answer.stdout).items()
    }
