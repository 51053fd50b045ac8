"""Runs when a Python process of ``cgtool run`` starts, then gives way to the user's own file of
this name."""

import os
import sys


def _begin(settings: str) -> None:
    home = settings.partition("\n")[0]
    sys.path.insert(0, home)
    try:
        from cgtool.recorder.begin import begin

        begin(settings)
    except Exception:
        # Not a Python that can run cgtool: the program needs none.
        pass
    finally:
        sys.path.remove(home)
        for name in [name for name in sys.modules if name.partition(".")[0] == "cgtool"]:
            del sys.modules[name]


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
