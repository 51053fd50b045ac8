"""Calls by which the user's code ends its own process: each tells its line before it goes.

A process that has ended leaves an exit code or a signal and no line. So what ends it from Python
is wrapped, and faulthandler writes the stack for signals that come another way.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from cgtool.model.capture import Frame
from cgtool.observe.frames import chain_of, frame_of
from cgtool.worker.protocol import Ending

Tell = Callable[[Ending], None]

_DEADLY = (
    "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR2", "SIGXCPU",
    "SIGXFSZ", "SIGTRAP", "SIGSYS",
)  # fmt: skip
"""End a process that does not handle them, and are not among faulthandler's own."""


def write_stacks(file: TextIO) -> None:
    """The Python stack of every signal that ends the process goes to ``file``."""
    faulthandler.enable(file, all_threads=False)
    for name in _DEADLY:
        number = getattr(signal, name, None)
        if number is not None:
            # Chained: what the signal does otherwise, it does after the stack is written.
            faulthandler.register(number, file, all_threads=False, chain=True)


def _frames() -> tuple[Frame, ...]:
    """The user's frames of this thread; those of the main one when it has none."""
    chain = chain_of(sys._getframe(2))
    if not chain:
        main = threading.main_thread().ident
        chain = chain_of(sys._current_frames().get(main or 0))
    return tuple(frame_of(site) for site in chain)


def announce(tell: Tell) -> None:
    """From now on ``tell`` hears of every call that ends this process, before it is made."""
    home = os.getpid()

    def wrap(owner: Any, name: str, ending: Callable[..., tuple[int, str] | None]) -> None:
        real = getattr(owner, name, None)
        if real is None:
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            # Children that the user's code forks end as they like.
            found = ending(*args, **kwargs) if os.getpid() == home else None
            if found is not None:
                tell(Ending(found[0], found[1], _frames()))
            return real(*args, **kwargs)

        call.__name__, call.__qualname__, call.__doc__ = name, name, real.__doc__
        setattr(owner, name, call)

    def exits(status: Any = 0, *_: Any) -> tuple[int, str] | None:
        return (status & 0xFF, f"called os._exit({status})") if isinstance(status, int) else None

    def becomes(path: Any = "", *_: Any, **__: Any) -> tuple[int, str]:
        return 0, f"replaced its own process with {path} (os.exec)"

    def sends(what: str) -> Callable[..., tuple[int, str] | None]:
        def kills(*args: Any) -> tuple[int, str] | None:
            number, *target = args[::-1]
            if not isinstance(number, int) or number <= 0:
                return None
            own = not target or target[0] in (0, home, -home, threading.get_ident())
            return (-number, f"sent itself {_name(number)} with {what}") if own else None

        return kills

    wrap(os, "_exit", exits)
    for name in ("execv", "execve"):
        wrap(os, name, becomes)
    wrap(os, "kill", sends("os.kill"))
    wrap(os, "killpg", sends("os.killpg"))
    wrap(signal, "raise_signal", sends("signal.raise_signal"))
    wrap(signal, "pthread_kill", sends("signal.pthread_kill"))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
