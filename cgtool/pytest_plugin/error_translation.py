"""Errors of cgtool in a test: the message of cgtool, at the user's line, without our frames."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import ParamSpec, TypeVar

import pytest

from cgtool.cli.output import show_bug, show_failure
from cgtool.model.failure import EXIT_MACHINE, EXIT_USAGE, CgtoolError, Failure

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 96
"""Columns of a table; pytest puts four more before each line."""


class Unexpected(Exception):
    """The graph is not what the test expects. The text is all of the message."""


def failure_text(failure: Failure) -> str:
    """The message of the command line."""
    return _printed(show_failure, failure).removeprefix("cgtool: ")


def _printed(show: Callable[[T], None], problem: T) -> str:
    with redirect_stderr(StringIO()) as text:
        show(problem)
    return text.getvalue().rstrip("\n")


def translated(call: Callable[P, T]) -> Callable[P, T]:
    """``call`` with errors for pytest: AssertionError where the code under test is wrong,
    ``pytest.fail`` for wrong use and for a machine that cannot."""

    signature = inspect.signature(call)
    name = "cudagraph" if call.__name__ == "__call__" else f"graph.{call.__name__}"

    @functools.wraps(call)
    def plain(*args: P.args, **kwargs: P.kwargs) -> T:
        # pytest leaves out frames with this name, so the line of the test is shown.
        __tracebackhide__ = True
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise pytest.fail.Exception(f"{name}(): {error}") from None
        try:
            return call(*args, **kwargs)
        except (pytest.skip.Exception, pytest.fail.Exception) as error:
            raise error.with_traceback(None) from None
        except Unexpected as error:
            raise AssertionError(str(error)) from None
        except CgtoolError as error:
            text = failure_text(error.failure)
            if error.failure.exit_code in (EXIT_USAGE, EXIT_MACHINE):
                raise pytest.fail.Exception(text) from None
            raise AssertionError(text) from None
        except Exception as error:
            raise pytest.fail.Exception(_printed(show_bug, error)) from None

    return plain
