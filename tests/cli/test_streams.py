"""Standard output and standard error that end early: a full disk, a reader that went away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAVED = Path(__file__).resolve().parent.parent.parent / "samples" / "captures"
PROFILE, MLP = str(SAVED / "profile-transformer.cgt"), str(SAVED / "mlp.cgt")
COMMANDS = {
    "help": (0, "--help"),
    "version": (0, "--version"),
    "help of a command": (0, "dump", "--help"),
    "dump": (0, "dump", PROFILE, "--dot", "-q"),
    "table": (0, "profile", PROFILE),
    "trace": (0, "profile", PROFILE, "--format", "perfetto"),
    "same": (0, "diff", MLP, MLP),
    "different": (1, "diff", MLP, PROFILE),
    "gate": (1, "gate", PROFILE, "--max-nodes", "3", "--format", "json"),
    "device": (0, "dump", PROFILE, "--json", "-o", "/dev/stdout"),
    "explain": (0, "explain", "sync-item"),
}
EACH = pytest.mark.parametrize("name", COMMANDS)
FULL = Path("/dev/full")


def cgtool(*arguments, **streams):
    done = [sys.executable, "-m", "cgtool.cli.app", *arguments]
    return subprocess.run(done, text=True, check=False, **streams)


@EACH
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_a_full_disk_is_reported_in_one_line(name):
    with FULL.open("w") as full:
        done = cgtool(*COMMANDS[name][1:], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    where = COMMANDS[name][-1] if name == "device" else "to standard output"
    assert done.stderr == f"cgtool: cannot write {where}: No space left on device\n"


@EACH
def test_when_the_reader_goes_away_the_answer_stays(name):
    expected, *command = COMMANDS[name]
    process = subprocess.Popen(
        [sys.executable, "-m", "cgtool.cli.app", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == expected
    process.stderr.close()


def test_what_is_written_to_files_is_written_when_the_reader_went_away(tmp_path):
    report = tmp_path / "report.json"
    command = ["gate", MLP, "--max-nodes", "3", "--format", "table", "--format", f"json={report}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cgtool.cli.app", *command], stdout=subprocess.PIPE
    )
    process.stdout.close()
    assert process.wait() == 1
    assert '"cgtool-gate"' in report.read_text()


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("expected", "arguments"),
    [(0, ("--version",)), (2, ("dump", "gone.cgt")), (2, ("dump", "--no-such-option"))],
)
def test_a_failing_standard_error_changes_no_exit_code(expected, arguments):
    with FULL.open("w") as full:
        assert cgtool(*arguments, stdout=subprocess.DEVNULL, stderr=full).returncode == expected
