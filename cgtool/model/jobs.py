"""Messages to and from a worker process: a Request with one job, on its standard input, which for a
``StepJob`` Questions follow; and its replies, on a pipe. All are JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from cgtool.model.capture import Frame, TensorValues
from cgtool.model.failure import Failure, usage
from cgtool.model.files import is_file
from cgtool.model.finding import Finding
from cgtool.model.options import (
    BenchOptions,
    CaptureOptions,
    DebugOptions,
    ProfileOptions,
    VerifyOptions,
)


class Job(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="job"):
    """The part that all jobs share. ``cgtool.jobs.dispatch`` has one function per job."""

    spec: str
    """An ENTRY, or the path of a script."""
    capture_options: CaptureOptions = CaptureOptions()


class CaptureJob(Job, frozen=True, omit_defaults=True, tag="capture"):
    """Capture an ENTRY. Writes a capture file."""


class BenchJob(Job, frozen=True, omit_defaults=True, tag="bench"):
    """Capture an ENTRY, and time eager and replays. Writes a capture file."""

    options: BenchOptions = BenchOptions()


class AgainstJob(Job, frozen=True, omit_defaults=True, tag="against", kw_only=True):
    """Time replays of two ENTRIES in one process. Writes a capture file of the first."""

    against: str
    """The second ENTRY."""
    options: BenchOptions = BenchOptions()


class ProfileJob(Job, frozen=True, omit_defaults=True, tag="profile"):
    """Capture an ENTRY, and time every node. Writes a capture file."""

    options: ProfileOptions = ProfileOptions()


class CheckJob(Job, frozen=True, omit_defaults=True, tag="check"):
    """Find what would fail when an ENTRY is captured. Writes a Report."""

    dry_run_only: bool = False
    """It is known that a capture fails, and in it: look for the cause."""


class ScriptJob(Job, frozen=True, omit_defaults=True, tag="script"):
    """Run a script, and watch the graphs that it captures itself. Writes a Report."""


class VerifyJob(Job, frozen=True, omit_defaults=True, tag="verify"):
    """Compare replays of an ENTRY with eager. Writes a Report."""

    options: VerifyOptions = VerifyOptions()


class DebugJob(Job, frozen=True, omit_defaults=True, tag="debug"):
    """Run the graphs of an ENTRY node by node. Writes a Report."""

    options: DebugOptions = DebugOptions()


class StepJob(Job, frozen=True, omit_defaults=True, tag="step"):
    """Capture an ENTRY, and answer Questions about its graphs, node by node. Writes a capture file
    before the first Answer."""


ReplayingJob = CaptureJob | BenchJob | AgainstJob | ProfileJob | VerifyJob
"""Jobs that capture an ENTRY and replay it."""
AnyJob = ReplayingJob | CheckJob | ScriptJob | DebugJob | StepJob


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job for one worker process."""

    job: AnyJob
    output: str
    """Where the worker writes the capture file, or the Report as JSON."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the process that starts the worker, whose modules the worker must find too:
    pytest, a ``conftest.py`` or a program puts folders there that no environment variable names."""


# --- questions of a prompt, and their answers


class RunTo(msgspec.Struct, frozen=True, omit_defaults=True, tag="run"):
    """Run nodes until ``position``, or until one of ``stops``. A position is a number of nodes, of
    all graphs in the order of capture, that this replay has run."""

    position: int
    stops: tuple[int, ...] = ()
    nan: bool = False
    """Stop after the op that gives the first NaN of the replay."""


class Begin(msgspec.Struct, frozen=True, omit_defaults=True, tag="begin"):
    """Begin a replay."""

    restore: bool = True
    """From the state before the first one; else from what the last one has left."""


class Evaluate(msgspec.Struct, frozen=True, omit_defaults=True, tag="evaluate"):
    """An expression of the current op's tensors."""

    expression: str
    file: str | None = None
    """Where to save it, as ``torch.save`` does; it is a tensor then."""


Question = RunTo | Begin | Evaluate


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a replay is, and what was requested there."""

    position: int = 0
    values: tuple[TensorValues, ...] = ()
    """What the op has written whose last node has run just now."""
    names: tuple[str, ...] = ()
    """The tensors that expressions can use."""
    text: str = ""
    """Of an expression."""
    because: str | None = None
    """Why it stopped before the position that was requested, other than at one of ``stops``."""
    error: str | None = None
    """Of an expression, or of a file that cannot be written."""
    fault: Finding | None = None
    """A node has failed, and nothing more can be run."""


Talk = Callable[[Answer], Question | None]
"""Sends an answer, and returns the next question; None if there is none any more."""


AHEAD = "ahead"
"""Last argument of a worker that imports torch before it reads its request."""
READY = "ready"
"""The phase of such a worker while it waits."""
RUNS_SCRIPT = "run the script"
"""The phase in which a script may print."""
CHANNEL_LOST = 97
"""Exit code of a worker whose pipe was closed by the user's code."""


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user's code is about to end the process itself. It counts only if it does."""

    status: int
    """``subprocess.Popen.returncode``: an exit code, or the negative number of a signal."""
    action: str
    """``called os._exit(3)``."""
    frames: tuple[Frame, ...] = ()


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. One of ``failure``, ``bug`` and ``done`` is the last."""

    phase: str | None = None
    """The step that the worker does now."""
    ending: Ending | None = None
    answer: Answer | None = None
    failure: Failure | None = None
    done: bool = False
    bug: str | None = None
    """A traceback of cgtool's own."""


def check_job(spec: str, options: CaptureOptions) -> CheckJob | ScriptJob:
    """The job of ``cgtool check``: ``train.py`` is a script, ``train.py:build`` is an ENTRY.

    Raises CgtoolError (exit 2) for a saved capture.
    """
    if spec.endswith(".cgt"):
        raise usage(
            f"{spec} is a saved capture: there is no code to check",
            fix="give the ENTRY or the script that was captured",
        )
    return ScriptJob(spec, options) if is_script(spec) else CheckJob(spec, options)


def is_script(target: str) -> bool:
    """Whether this names a file as a whole, not an object in it."""
    return ":" not in target or is_file(Path(target))


def capture_path_for(report: Path) -> Path:
    """Where a job that writes a Report leaves the capture that it made, for the analyses."""
    return report.with_suffix(".cgt")
