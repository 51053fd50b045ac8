"""Runs when a Python process of ``cgtool run`` starts, then gives way to the user's own file of
this name."""

import os
import sys
import time


def _begin(settings: str) -> None:
    try:
        try:
            from cgtool.recording.begin import begin
        except ImportError:
            # cgtool is not installed for this Python: at the end, where it shadows nothing.
            sys.path.append(settings.partition("\n")[0])
            try:
                from cgtool.recording.begin import begin
            finally:
                sys.path.pop()
        begin(settings)
    except Exception as error:
        folder = settings.split("\n")[1]
        name = f"{os.getpid()}-{time.time_ns()}.lost"
        with open(os.path.join(folder, name), "w") as file:  # noqa: PTH118, PTH123
            file.write(f"{sys.executable}: {type(error).__name__}: {error}")


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [folder for folder in sys.path if folder != here]
    settings = os.environ.get("CGTOOL_RECORDING")
    if settings:
        _begin(settings)
    this = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, this)


_start()
