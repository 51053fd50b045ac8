"""``cgtool.note`` and ``cgtool.event``: what a program says about its next capture or replay, and
about this moment."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable

from cgtool.model.program import PADDED

Values = dict[str, float | str]
"""What was noted, by name."""

pending: dict[int, Values] = {}
"""By thread: what was noted since its last replay. Empty where nothing is recorded."""
EVERY_REPLAY = -1
"""A key of ``pending`` that belongs to no thread: while it is there, ``Events`` counts replays."""
_record_event: Callable[[str], None] | None = None
"""None where nothing is recorded."""


def note(**values: float | str) -> None:
    """Note numbers or texts for the next replay of this thread, or its next capture, or its next
    run of captured code outside graphs::

        cgtool.note(batch=17)
        cgtool.note(rows=13, padded_rows=16)
        graph.replay()
        cgtool.note(reason="lora")
        model(x)

    The ledger of a recording (``cgtool run``, ``cgtool.recording``) shows for each graph how often
    a name was noted, and its minimum, median and maximum. ``rows`` is what a replay needs, and
    ``padded_rows`` what the graph computes: the ledger shows how much of it is padding. Any name
    works. If a name is noted twice before a replay, the last value counts. The graph of a backward
    is replayed for the thread that calls ``backward()``. Before a capture, the note becomes the
    graph's key: ``batch 17``.

    Does nothing where nothing is recorded, so it can stay in a program. Do not pass tensors:
    reading one would wait for the GPU.
    """
    if _record_event is not None:
        thread = get_ident()
        noted = pending.get(thread)
        if noted is None:
            pending[thread] = values
        else:
            noted.update(values)


def note_alone(values: Values) -> None:
    """``note``, and nothing that was noted before."""
    if _record_event is not None:
        pending[get_ident()] = values


def key_of(values: Values) -> str:
    """The name of a graph that is captured after this note: ``tokens 16, cache 256``."""
    return ", ".join(
        f"{name} {_text(values.get(PADDED + name, value))}"
        for name, value in values.items()
        if not (name.startswith(PADDED) and name.removeprefix(PADDED) in values)
    )


def _text(value: float | str) -> str:
    is_whole = not isinstance(value, str) and float(value).is_integer()
    return str(int(value) if is_whole else value)


def event(name: str) -> None:
    """Mark this moment of the program::

        engine.warm_up()
        cgtool.event("ready")

    The ledger of a recording shows what happened between two events, and ``cgtool gate`` limits
    what may happen after one: ``--max-captures-after ready=0``. Any name works, as often as the
    program likes. It may be called in a capture and on any thread.

    Does nothing where nothing is recorded, so it can stay in a program. Raises TypeError if the
    name is not a text.
    """
    if not isinstance(name, str):
        raise TypeError(f"cgtool.event takes the name of the event, not {type(name).__name__}")
    if _record_event is not None:
        _record_event(name)


def listen(record_event: Callable[[str], None] | None) -> None:
    """Keep what is noted from now on, and call this with the name of each event; None: no
    longer."""
    global _record_event
    _record_event = record_event
    pending.clear()
