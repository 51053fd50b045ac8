"""The error with which a backward was refused in anomaly mode.

PyTorch then warns of every error in a backward, with the lines of the forward that it follows from.
Of a refusal that says nothing: it names its line itself.
"""

from __future__ import annotations

import weakref

_last: weakref.ref[BaseException] | None = None


def note_refusal(error: BaseException) -> None:
    """This error is about to be raised in a backward."""
    global _last
    _last = weakref.ref(error)


def is_refused() -> bool:
    """Whether the error that ends a backward now is a refusal: it is still alive."""
    return _last is not None and _last() is not None
