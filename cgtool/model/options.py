"""What the user asked for, as it travels from the command line to the worker process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Progress = Callable[[str], None]
"""Called with the name of each step that begins: ``warm-up 1/3 of f``."""


class CaptureOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of every command that captures, in PyTorch's words."""

    device: str | None = None
    """``cuda``, ``cuda:1``, ``simulated``; None takes a GPU if there is one."""
    warmup_iters: int | None = None
    """None: 3, or 11 with DistributedDataParallel."""
    allow_unused_input: bool = False
    pool: str = "shared"
    """``shared`` (one pool for all graphs of the workload) or ``separate``."""
    stream: str | None = None
    """None and ``normal``: a fresh stream; ``high``: a fresh one of high priority."""
    capture_error_mode: str = "global"
    check_input_liveness: bool = False
    annotations: bool = True
    backward: bool = True
    times: bool = False
    """Time every node with PyTorch's profiler (needs a GPU)."""
    seed: int | None = None


FEWEST_PAIRS, PAIRS_A_LOOK = 16, 8
"""Of ``bench --against``: pairs before the precision is looked at, and between two looks."""
FIRST_RUNS, MAX_RUNS, MAX_SECONDS = 3, 20, 300.0
"""Of an entry held against a baseline: runs before the first look, and until when to measure on."""


class BenchOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool bench``."""

    phase: str | None = None
    """``forward``, ``backward``, ``both`` or ``step``; None: all that the workload has."""
    rounds: int = 30
    min_round_ms: float = 5.0
    """Each sample repeats the work until a pair of events is at least this far apart."""
    max_seconds: float = 60.0
    against: str | None = None
    """Another ENTRY: pairs of captures, one of each, are measured instead of eager."""
    precision: float = 0.0005
    """With ``against``: relative standard error of the ratio at which no more pairs are made."""


class ProfileOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool profile``."""

    replays: int = 20
    """Replays of each graph that are traced, and as many that are not."""
    rounds: int = 12
    """Interleaved rounds of eager against replay."""
    max_seconds: float = 60.0
    """After so long no round is begun."""


class CheckOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool check``."""

    arguments: tuple[str, ...] = ()
    """``sys.argv[1:]`` of a script."""


class VerifyOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool verify``."""

    replays: int = 3
    """Replays in a row on the same inputs."""
    trials: int = 2
    """Sets of fresh inputs."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt, for one worker process."""

    spec: str
    output: str
    """Where the worker writes the capture file, or a Report as JSON."""
    inputs: tuple[str, ...] = ()
    capture: CaptureOptions = CaptureOptions()
    bench: BenchOptions | None = None
    """Set for ``cgtool bench``: time what was captured."""
    profile: ProfileOptions | None = None
    """Set for ``cgtool profile``: every node of what was captured is timed."""
    check: CheckOptions | None = None
    """Set for ``cgtool check``: a Report is written instead of a capture."""
    verify: VerifyOptions | None = None
    """Set for ``cgtool verify``: a Report is written instead of a capture."""
    path: tuple[str, ...] = ()
    """``sys.path`` of the process that asks, which the supervisor puts here."""
