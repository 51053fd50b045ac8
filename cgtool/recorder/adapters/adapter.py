"""How an engine's sizes are noted: after a method of its that knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cgtool.recorder.notes import note_alone
from cgtool.torch_compat.patches import Patches


class Adapter(NamedTuple):
    """A method of an engine. A version of the engine that has no such method says nothing."""

    module: str
    owner: str
    method: str
    sizes: Callable[..., dict[str, float] | None]
    """Called with what the method returned, and with its arguments: what to note for the next
    capture or replay of the thread."""


def follow_engine(adapter: Adapter, patches: Patches, say: Callable[[str], None]) -> None:
    """Note what an engine does from the import of its module on, until ``patches`` are undone, or
    until it does something else than is known: ``say`` is called with the reason, and the engine
    goes on."""
    failed: list[Exception] = []

    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not failed:
            try:
                sizes = adapter.sizes(result, *args, **kwargs)
            except Exception as error:
                failed.append(error)
                method = f"{adapter.module}.{adapter.owner}.{adapter.method}"
                say(f"the sizes of {method} are not noted: {type(error).__name__}: {error}")
            else:
                if sizes is not None:
                    note_alone(sizes)
        return result

    patches.wrap_later(adapter.module, f"{adapter.owner}.{adapter.method}", call)
