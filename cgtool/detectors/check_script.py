"""Run a user's script as ``__main__`` and watch every CUDA graph that it captures and replays."""

from __future__ import annotations

import sys
import types
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from cgtool.detectors.script.families import all_checks
from cgtool.detectors.script.hooks import watching
from cgtool.detectors.script.reported_errors import told
from cgtool.detectors.script.run import Watch
from cgtool.model.failure import CgtoolError, usage
from cgtool.model.finding import Finding
from cgtool.model.options import Progress
from cgtool.observe.call_sites import recorded
from cgtool.observe.compiled import left_alone
from cgtool.observe.frames import call_user
from cgtool.program.boundary import first_line, innermost, load_error, own_fault


def _source(path: str) -> types.CodeType:
    file = Path(path)
    try:
        text = file.read_bytes()
    except OSError as error:
        raise usage(f"{path}: {error.strerror or error}") from None
    try:
        return compile(text, str(file.resolve()), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise load_error(path, error) from None


def _execute(code: types.CodeType, path: str, arguments: tuple[str, ...]) -> types.ModuleType:
    """The module that the script became; whatever it raises goes through."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=code.co_filename, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(code.co_filename).parent))
    call_user(exec, code, module.__dict__)
    return module


def run(
    path: str, arguments: tuple[str, ...], watch: Watch, progress: Progress
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, what was looked at).

    Raises CgtoolError (exit 2 for a file that cannot be read, 4 for an exception of the script's
    own that no finding explains; the findings so far are in its failure).
    """
    code = _source(path)
    looked: list[str] = []
    progress("run the script")
    module: Any = None
    with ExitStack() as stack:
        stack.enter_context(left_alone())
        stack.enter_context(recorded())
        watch.checks = all_checks(watch, stack)
        stack.enter_context(watching(watch))
        try:
            module = _execute(code, path, arguments)
        except SystemExit as error:
            if error.code not in (None, 0):
                looked.append(f"the script ended with sys.exit({error.code!r})")
        except CgtoolError as error:
            failure = error.failure
            kept = (*failure.findings, *watch.findings.all())
            raise CgtoolError(msgspec.structs.replace(failure, findings=kept)) from None
        except BaseException as error:
            looked.append(_ended(path, error, watch))
        watch.finish()
    del module
    replays = sum(one.replays for one in watch.graphs)
    looked.insert(
        0, f"the script, with {len(watch.graphs)} captures and {replays} replays of its own"
    )
    return watch.findings.all(), tuple(looked)


def _ended(path: str, error: BaseException, watch: Watch) -> str:
    """What to say of a script that raised, when findings explain it."""
    root = innermost(error)
    explained = told(error) or told(root) or watch.explain(root, "script")
    if explained:
        return f"the script up to its end with {type(error).__name__}: {first_line(error)}"
    if own_fault(error):
        raise error
    failure = load_error(path, error).failure
    raise CgtoolError(
        msgspec.structs.replace(failure, phase="script", findings=watch.findings.all())
    ) from None
