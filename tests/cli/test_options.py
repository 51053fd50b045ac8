"""A capture option is declared once: a field of ``CaptureOptions``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cgtool.cli.app import COMMANDS, app
from cgtool.model.failure import CgtoolError
from cgtool.model.options import CaptureOptions, capture_options, unexpected
from cgtool.pytest_plugin.marker import Options, of_marker, options_of

CAPTURING = (
    "capture",
    "bench",
    "profile",
    "check",
    "verify",
    "debug",
    "dump",
    "pools",
    "diff",
    "gate",
)
FAKE = """
from typing import Annotated
import msgspec
from cgtool.model import options

class Fake(options.CaptureOptions, frozen=True, omit_defaults=True):
    frobnicate: Annotated[bool, msgspec.Meta(description="Frobnicate it.")] = False
    threads: Annotated[int, msgspec.Meta(ge=1, description="Threads.")] = 2
    scale: Annotated[float | None, msgspec.Meta(description="Scale.")] = None

options.CaptureOptions = Fake
"""


def in_process(code: str) -> str:
    """What a fresh interpreter prints, where ``CaptureOptions`` has one field more."""
    done = subprocess.run(
        [sys.executable, "-c", FAKE + code], capture_output=True, text=True, check=True
    )
    return done.stdout


OWN = {("pools", "pool")}
"""``pools --pool NAME`` selects a pool: the capture option is ``--capture-pool`` there."""


@pytest.mark.parametrize("name", CAPTURING)
def test_a_command_that_captures_has_every_capture_option(name):
    command = typer.main.get_command(app).get_command(None, name)
    flags = {flag for parameter in command.params for flag in parameter.opts}
    for option in capture_options():
        own = (name, option.name) in OWN
        assert (f"--capture-{option.name}" if own else option.flag) in flags


def test_no_other_command_has_one():
    others = set(COMMANDS) - set(CAPTURING)
    assert others == {"annotate", "doctor", "explain", "help", "report", "run", "show"}


def test_a_new_field_is_an_option_of_every_command_that_captures():
    out = in_process(
        f"""
from typer.main import get_command
from cgtool.cli.app import app
for name in {CAPTURING}:
    command = get_command(app).get_command(None, name)
    assert any("--frobnicate" in parameter.opts for parameter in command.params), name
    print(name)
"""
    )
    assert tuple(out.split()) == CAPTURING


def test_a_new_field_reaches_the_help_and_the_request(tmp_path: Path):
    out = in_process(
        """
from typer.main import get_command
from cgtool.cli import workers
from cgtool.cli.app import app

try:
    get_command(app)(["capture", "--help"])
except SystemExit:
    pass

def capture_of(job, output, _options):
    print("got", job.capture_options.frobnicate)
    raise SystemExit

workers.capture_of = capture_of
get_command(app)(["capture", "model.py:build", "--frobnicate"])
"""
    )
    assert "--frobnicate" in out
    assert "Frobnicate it." in out
    assert "got True" in out


def test_a_new_field_of_any_type_is_read_and_checked_by_its_type():
    out = in_process(
        """
from typer.main import get_command
from cgtool.cli import workers
from cgtool.cli.app import app
from cgtool.model.failure import CgtoolError

def capture_of(job, output, _options):
    print(job.capture_options.threads, job.capture_options.scale)
    raise SystemExit

workers.capture_of = capture_of
for more in ([], ["--threads", "3", "--scale", "0.5"], ["--threads", "0"]):
    try:
        get_command(app)(["capture", "model.py:build", *more])
    except SystemExit:
        pass
    except CgtoolError as error:
        print(error.failure.message)
"""
    )
    assert out.splitlines() == [
        "2 None",
        "3 0.5",
        "--threads 0: expected an integer of at least 1",
    ]


def test_a_new_field_is_an_argument_of_the_marker_and_of_the_fixture():
    out = in_process(
        """
from cgtool.pytest_plugin.marker import Options, of_marker, options_of
print(of_marker("marker", {"frobnicate": True})[0])
print(options_of({"frobnicate": True}, Options()).capture_options.frobnicate)
"""
    )
    assert out.splitlines() == ["{'frobnicate': True}", "True"]


def test_a_new_field_is_recorded_in_a_capture():
    out = in_process(
        """
from cgtool.program.description import entry_of
from cgtool.program.workload import Workload
recorded = entry_of(Workload("m.py:f", "callable", ()), options.CaptureOptions(frobnicate=True))
print([one.value for one in recorded.options if one.name == "frobnicate"])
"""
    )
    assert out.strip() == "['True']"


@pytest.mark.parametrize("option", capture_options(), ids=lambda option: option.name)
def test_every_option_has_a_help_text_and_takes_its_own_default(option):
    assert option.help.endswith(".")
    assert option.expected
    assert unexpected(option.name, option.default) is None


@pytest.mark.parametrize("option", capture_options(), ids=lambda option: option.name)
def test_the_marker_refuses_what_an_option_does_not_take(option):
    with pytest.raises(CgtoolError) as caught:
        of_marker("marker", {option.name: object})
    assert f"expected {option.expected}" in caught.value.failure.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "tpu"),
        ("device", "cuda:1\n"),
        ("warmup_iters", -1),
        ("seed", True),
        ("stream", "low"),
        ("pool", None),
        ("capture_error_mode", "GLOBAL"),
    ],
)
def test_values_that_are_refused(name, value):
    assert unexpected(name, value) is not None


def test_the_options_of_the_fixture_are_those_of_a_capture():
    given = {"stream": "high", "input": "x=float32[4]", "annotations": False}
    read = options_of(given, Options(seed=3)).capture_options
    assert read == CaptureOptions(stream="high", input=("x=float32[4]",), annotations=False, seed=3)
