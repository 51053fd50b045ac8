"""Options of the commands, as they travel from the command line to the worker process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Progress = Callable[[str], None]
"""Called with the name of each step that begins: ``warm-up 1/3 of f``."""


class CaptureOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an ENTRY is captured: the one declaration of every capture option.

    The options of the command line, the arguments of the pytest marker and of ``cudagraph()``,
    their validation, and what a capture file records are all derived from these fields. The
    description is the help text; ``CaptureOption`` has what else a field can declare.
    """

    input: Annotated[
        tuple[str, ...],
        Meta(
            description="An input of a module or a function, as described below; repeatable.",
            extra={"metavar": "SPEC", "expected": "text, or several texts"},
        ),
    ] = ()
    argument: Annotated[
        tuple[str, ...],
        Meta(
            description="An argument for the user's program, as in `python FILE ARGUMENT...`; "
            "repeatable. Everything after -- is also passed to it.",
            extra={"metavar": "TEXT", "expected": "text, or several texts"},
        ),
    ] = ()
    device: Annotated[
        Annotated[str, Meta(pattern=r"^(simulated|cuda(:[0-9]{1,4})?)\Z")] | None,
        Meta(
            description="cuda, cuda:N or simulated; by default, a GPU if there is one.",
            extra={"metavar": "DEVICE", "expected": "cuda, cuda:N or simulated"},
        ),
    ] = None
    warmup_iters: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Warm-up iterations before the capture: 3, or 11 with "
            "DistributedDataParallel.",
        ),
    ] = None
    allow_unused_input: Annotated[
        bool,
        Meta(
            description="Allow inputs that backward does not reach.", extra={"changes_graph": True}
        ),
    ] = False
    pool: Annotated[
        Literal["shared", "separate"],
        Meta(
            description="One memory pool for all graphs, or one each.",
            extra={"changes_graph": True},
        ),
    ] = "shared"
    stream: Annotated[
        Literal["normal", "high"], Meta(description="Priority of the capturing stream.")
    ] = "normal"
    capture_error_mode: Annotated[
        Literal["global", "thread_local", "relaxed"],
        Meta(description="The capture_error_mode of torch.cuda.graph."),
    ] = "global"
    check_input_liveness: Annotated[
        bool, Meta(description="Fail when a captured kernel points into freed memory.")
    ] = False
    annotations: Annotated[
        bool, Meta(description="Record the ranges of record_function, NVTX and mark_kernels.")
    ] = True
    backward: Annotated[
        bool,
        Meta(description="Capture backward too, or only forward.", extra={"changes_graph": True}),
    ] = True
    times: Annotated[
        bool, Meta(description="Time every node in a few traced replays (needs a GPU).")
    ] = False
    seed: Annotated[int | None, Meta(description="Seed for the random number generators.")] = None


class CaptureOption(NamedTuple):
    """One field of ``CaptureOptions``, as the command line and the pytest plugin read it."""

    name: str
    flag: str
    """``--warmup-iters``."""
    annotation: Any
    """The type, with its ``Meta``."""
    type: Any
    """The type alone: without its ``Meta``, and without None."""
    default: Any
    help: str
    choices: tuple[str, ...]
    """The accepted texts if the type is a ``Literal``."""
    metavar: str | None
    expected: str
    """A description of valid values, for the message about one that is not."""
    changes_graph: bool
    """Whether a gate notes that its two sides were captured with different values."""


_EXPECTED = {bool: "True or False", int: "an integer", float: "a number"}


@functools.cache
def capture_options() -> tuple[CaptureOption, ...]:
    """Every capture option, in the order of the fields."""
    hints = get_type_hints(CaptureOptions, include_extras=True)
    return tuple(
        _option(field.name, hints[field.name], field.default)
        for field in msgspec.structs.fields(CaptureOptions)
    )


def _option(name: str, hint: Any, default: Any) -> CaptureOption:
    meta = hint.__metadata__[-1]
    extra = meta.extra or {}
    type_, least = hint, None
    while origin := get_origin(type_):
        if origin in (Literal, tuple):
            break
        if origin is Annotated:
            least = next((bound.ge for bound in type_.__metadata__ if bound.ge is not None), least)
        type_ = next(part for part in get_args(type_) if part is not NoneType)
    choices = get_args(type_) if get_origin(type_) is Literal else ()
    if choices:
        expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
    else:
        expected = _EXPECTED.get(type_, "text") + (
            f" of at least {least}" if least is not None else ""
        )
    return CaptureOption(
        name=name,
        flag=f"--{name.replace('_', '-')}",
        annotation=hint,
        type=type_,
        default=default,
        help=meta.description,
        choices=choices,
        metavar=extra.get("metavar"),
        expected=extra.get("expected", expected),
        changes_graph=extra.get("changes_graph", False),
    )


def unexpected(name: str, value: object) -> str | None:
    """A description of what the capture option ``name`` takes, if ``value`` is not valid; else
    None."""
    option = next(option for option in capture_options() if option.name == name)
    try:
        msgspec.convert(value, option.annotation)
    except msgspec.ValidationError:
        return option.expected
    return None


FEWEST_PAIRS, PAIRS_A_LOOK = 16, 8
"""For ``bench --against``: pairs before the precision is first computed, and between two times."""
FIRST_RUNS, MAX_RUNS, MAX_SECONDS = 3, 20, 300.0
"""For an entry compared with a baseline: runs before the first comparison, and when to stop."""


class BenchOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool bench``."""

    phase: str | None = None
    """``forward``, ``backward``, ``both`` or ``step``; None: all that the workload has."""
    rounds: int = 30
    min_round_ms: float = 5.0
    """Each sample repeats the work until a pair of events is at least this far apart."""
    max_seconds: float = 60.0
    precision: float = 0.0005
    """With ``--against``: measure pairs until the relative standard error of the ratio is this."""


class ProfileOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool profile``."""

    replays: int = 20
    """Traced replays of each graph, and as many without tracing."""
    rounds: int = 12
    """Interleaved rounds of eager and replay."""
    max_seconds: float = 60.0
    """No round begins after this long."""


class VerifyOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool verify``."""

    replays: Annotated[int, Meta(ge=1)] = 3
    """Replays, one after the other, on the same inputs."""
    trials: Annotated[int, Meta(ge=0)] = 2
    """Sets of fresh inputs."""
    orders: Annotated[int, Meta(ge=0)] = 8
    """Other orders in which the nodes of a graph with branches run."""


class DebugOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of ``cgtool debug``."""

    replays: Annotated[int, Meta(ge=1)] = 3
    """Replays that are stepped, one after the other."""
    orders: Annotated[int, Meta(ge=0)] = 0
    """Other orders in which the nodes run."""
    against_eager: bool = False
    """Compare what each op writes with an eager run from the same state."""
