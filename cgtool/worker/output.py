"""Looks at the output of a program on its way to where it goes (``cgtool run --ready-output``).

A terminal stays one: the program gets a pseudoterminal with the size and the settings of the real
one, to which what comes out is passed on as it is. Standard input and the controlling terminal stay
the program's own, so Ctrl-C, Ctrl-Z and prompts work as before. Pipes and files become a pipe. If
both streams of the program go to one place, they still do, so lines keep their order.

A process of its own passes the output on, because processes that the program leaves behind may
write for longer than ``cgtool run`` runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import termios
import time
from collections.abc import Callable
from typing import Any

_CHUNK = 1 << 16
_ENDS_S = 1.0
"""How long the output may still come when the program has ended."""
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])")
"""What colors a line."""
_IGNORED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals of a group of processes: the program may write until it ends."""


class PassedOn:
    """The output of a program that is started while this is entered, with the standard output and
    the standard error that this yields: None for those of this process."""

    def __init__(self, pattern: re.Pattern[str] | None, found: Callable[[str], object]) -> None:
        """``found`` is called once, in another process, with the first line in which ``pattern`` is
        found, after that was passed on. Without a pattern, the program has the streams of this
        process. Raises OSError."""
        self._ends: list[int | None] = [None, None]
        self._pid = 0
        if pattern is None:
            return
        channels: dict[tuple[int, ...], _Channel] = {}
        for at, descriptor in enumerate((1, 2)):
            with contextlib.suppress(OSError):  # it is closed, and stays so
                status = os.fstat(descriptor)
                place = status.st_dev, status.st_ino, status.st_rdev
                if place not in channels:
                    channels[place] = _Channel(descriptor)
                self._ends[at] = channels[place].end
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._close()
                _pass_on(list(channels.values()), pattern, found)
            finally:
                os._exit(0)
        for channel in channels.values():
            os.close(channel.source)

    def __enter__(self) -> list[int | None]:
        return self._ends

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for end in {end for end in self._ends if end is not None}:
            os.close(end)

    def wait(self) -> None:
        """The program has ended: wait until its output has come out, unless others write on."""
        end = time.monotonic() + _ENDS_S
        while self._pid and time.monotonic() < end:
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            time.sleep(0.002)


class _Channel:
    """From the program's end of a pipe or a pseudoterminal to where its output goes."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.rest = ""
        """The beginning of a line."""
        self.is_terminal = os.isatty(target)
        if not self.is_terminal:
            self.source, self.end = os.pipe()
            return
        self.source, self.end = os.openpty()
        settings = termios.tcgetattr(target)
        settings[1] &= ~termios.OPOST  # the real one does it
        termios.tcsetattr(self.end, termios.TCSANOW, settings)
        self.resize()

    def resize(self) -> None:
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(self.target, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.source, termios.TIOCSWINSZ, size)

    def pass_on(self) -> bytes:
        """What has come; nothing at its end. Raises OSError if nobody reads it."""
        try:
            data = os.read(self.source, _CHUNK)
        except OSError as error:
            if error.errno != errno.EIO:  # the end of a pseudoterminal
                raise
            return b""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.target, left) :]
            except BlockingIOError:
                select.select((), (self.target,), ())
        return data

    def lines(self, data: bytes) -> list[str]:
        """The lines that end in ``data``."""
        *lines, rest = re.split(r"[\r\n]", self.rest + data.decode("utf-8", "replace"))
        self.rest = rest[-_CHUNK:]
        return [_ESCAPES.sub("", line) for line in lines]


def _pass_on(
    channels: list[_Channel], pattern: re.Pattern[str], found: Callable[[str], object]
) -> None:
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)

    def resized(*_: Any) -> None:
        for channel in channels:
            if channel.is_terminal:
                channel.resize()

    signal.signal(signal.SIGWINCH, resized)
    by_source = {channel.source: channel for channel in channels}
    is_found = False
    while by_source:
        for source in select.select(list(by_source), (), ())[0]:
            channel = by_source[source]
            data = b""
            with contextlib.suppress(OSError):
                data = channel.pass_on()
            if not data:
                # If the reader is gone, the next write of the program fails, as without us.
                os.close(source)
                del by_source[source]
            elif not is_found:
                line = next(filter(pattern.search, channel.lines(data)), None)
                if line is not None:
                    is_found = True
                    with contextlib.suppress(OSError):
                        found(line)
