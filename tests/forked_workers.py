"""Worker processes and commands that are forked from a process that has imported PyTorch.

A worker is a fresh Python, which imports PyTorch for more than a second. Most tests do not depend
on how a worker starts, so they fork it: what runs after the imports is the same, with the
descriptors, working directory, environment, standard input, process group and exit code of the real
thing.

- ``workers`` (fixture): workers that the code under test starts in this process are forked.
- ``in_fork``: call a function in a process of its own, whose workers are forked.
- ``run_cgtool``: the ``cgtool`` command in a process of its own, with forked workers; so is the
  script that ``cgtool run`` starts.

A test that depends on a fresh Python (modules in the current folder, environment variables that are
read when PyTorch is imported) is marked ``fresh_worker``, or starts ``sys.executable`` itself.
``CGTOOL_FRESH_WORKERS=1`` runs everything with fresh processes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, reduction, util
from pathlib import Path
from typing import Any

import pytest

from cgtool.model.program import VARIABLE
from cgtool.worker import program, supervisor

_FRESH = bool(os.environ.get("CGTOOL_FRESH_WORKERS"))
_CHILD = "cgtool.worker.child"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.preloaded"])


_starting = threading.Lock()
_ROOT = Path(__file__).resolve().parent.parent


def preload(*modules: str) -> None:
    """Modules that the process to fork from imports; to be called before it is started."""
    _context.set_forkserver_preload(list(modules))


def _start(target: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    """Fork a process from the one that has imported PyTorch, which is started if there is none.

    Before Python 3.12.4 that one finds modules only in the folder where it starts, and ignores
    what it cannot import: each process forked from it would then import PyTorch itself.
    """
    process = _context.Process(target=target, args=arguments)
    with _starting:
        if forkserver._forkserver._forkserver_pid is None:  # type: ignore[attr-defined]
            with contextlib.chdir(_ROOT):
                forkserver.ensure_running()
    process.start()
    return process


def _enter(standard: Sequence[int], passed: dict[int, int]) -> None:
    """Put descriptors in their places: 0, 1 and 2 from ``standard``, and ``passed`` by number."""
    # First all of them above every number that is wanted, so that none is overwritten.
    moved = [os.dup(descriptor) for descriptor in standard]
    moved_passed = {number: os.dup(descriptor) for number, descriptor in passed.items()}
    for number, descriptor in [*enumerate(moved), *moved_passed.items()]:
        os.dup2(descriptor, number)
    for descriptor in {*standard, *passed.values(), *moved, *moved_passed.values()}:
        if descriptor > 2 and descriptor not in passed:
            os.close(descriptor)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")


def _measure_coverage() -> Callable[[], None]:
    """Measure this forked process if ``COVERAGE_PROCESS_START`` names coverage's configuration.

    Coverage's own support for forks writes no data in a process that ends with ``os._exit``.
    Returns what writes the data.
    """
    configuration = os.environ.get("COVERAGE_PROCESS_START")
    if configuration is None:
        return lambda: None
    import coverage

    if (of_parent := coverage.Coverage.current()) is not None:
        of_parent.stop()
    measured = coverage.Coverage(config_file=configuration, data_suffix=True)
    measured.start()

    def write() -> None:
        measured.stop()
        measured.save()

    return write


def _run_worker(arguments: Sequence[str]) -> None:
    """Be what ``python -P -m cgtool.worker.child ARGUMENTS`` is."""
    sys.path[:] = [folder for folder in sys.path if folder]
    sys.argv = [_CHILD, *arguments]
    write_coverage = _measure_coverage()
    from cgtool.worker import child

    run = child._do

    def run_and_write(*arguments: Any) -> None:
        # Before the answer: the supervisor ends a worker that has answered.
        try:
            run(*arguments)
        finally:
            write_coverage()

    child._do = run_and_write
    child.main()


def _is_installed(folder: str) -> bool:
    return any(Path(folder).is_relative_to(place) for place in (sys.prefix, sys.base_prefix))


def _worker_of_forkserver(
    arguments: Sequence[str],
    environment: dict[str, str],
    standard: Sequence[Any],
    passed: dict[int, Any],
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    # The forkserver passes on the path of the process that asks, which a fresh worker learns from
    # its request alone.
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, given), *filter(_is_installed, sys.path), str(_ROOT)]
    _enter(
        [handle.detach() for handle in standard],
        {number: handle.detach() for number, handle in passed.items()},
    )
    _run_worker(arguments)


def _reset_signals() -> None:
    """As in a Python that has just started, whatever the command has installed."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Process:
    """The part of ``subprocess.Popen`` that the supervisor uses."""

    stdin: Any
    pid: int

    def poll(self) -> int | None:
        raise AssertionError

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(_CHILD, timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class _OfForkserver(_Process):
    """A worker for a process that has not imported PyTorch, or that has threads."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        read_end, write_end = os.pipe()
        try:
            self._process = _start(
                _worker_of_forkserver,
                command[command.index(_CHILD) + 1 :],
                dict(os.environ),
                [_Handle(read_end), _Handle(options["stdout"]), _Handle(options["stderr"])],
                {number: _Handle(number) for number in options["pass_fds"]},
            )
        finally:
            os.close(read_end)
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdin = os.fdopen(write_end, "wb")

    def poll(self) -> int | None:
        return self._process.exitcode


class _Handle:
    """A descriptor on its way to the forkserver's child, where it is a ``reduction.DupFd``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _unchanged, (reduction.DupFd(self._descriptor),)  # type: ignore[attr-defined]


def _unchanged(handle: Any) -> Any:
    return handle


class _Forked(_Process):
    """For a process that was forked itself, and has PyTorch loaded and no threads."""

    def __init__(self, be: Callable[[], None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _reset_signals()
                be()
            finally:
                os._exit(70)

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


class _OfThisProcess(_Forked):
    """A worker."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        read_end, write_end = os.pipe()

        def be_worker() -> None:
            os.setsid()
            os.close(write_end)
            _enter(
                [read_end, options["stdout"], options["stderr"]],
                {number: number for number in options["pass_fds"]},
            )
            _run_worker(command[command.index(_CHILD) + 1 :])

        super().__init__(be_worker)
        os.close(read_end)
        self.stdin = os.fdopen(write_end, "wb")


def _program_of_this_process(
    command: Sequence[str],
    *,
    env: dict[str, str],
    stdout: int | None = None,
    stderr: int | None = None,
) -> Any:
    """The program of ``cgtool run``: forked if it is a script without a way of its own to start."""
    if command[0] != sys.executable or not command[1].endswith(".py"):
        return subprocess.Popen(command, env=env, stdout=stdout, stderr=stderr)
    return _Forked(lambda: _run_script(command, env, [0, stdout or 1, stderr or 2]))


def _run_script(
    command: Sequence[str], environment: dict[str, str], standard: Sequence[int]
) -> None:
    """Be what ``python SCRIPT ARGUMENTS`` is under ``cgtool run``, after its import of PyTorch."""
    os.environ.clear()
    os.environ.update(environment)
    _enter(standard, {})
    gc.set_threshold(700, 10, 10)
    # What the command would do at its end is not the program's.
    atexit._clear()
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    atexit.register(util._exit_function)
    script = os.path.abspath(command[1])  # noqa: PTH100
    sys.argv, sys.orig_argv = list(command[1:]), list(command)
    sys.path.insert(0, os.path.dirname(script))  # noqa: PTH120
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    write_coverage = _measure_coverage()
    from cgtool.recorder.begin import begin

    code = 0
    try:
        begin(environment[VARIABLE])
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        trace = error.__traceback__
        traceback.print_exception(error.with_traceback(trace and trace.tb_next))
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    write_coverage()
    os._exit(code)


@contextlib.contextmanager
def _started_by(popen: Callable[..., Any], module: types.ModuleType = supervisor) -> Iterator[None]:
    """The module starts its processes like that."""
    real = module.subprocess
    module.subprocess = types.SimpleNamespace(  # type: ignore[attr-defined]
        Popen=popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    try:
        yield
    finally:
        module.subprocess = real  # type: ignore[attr-defined]


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forked workers for a test, unless it is marked ``fresh_worker``."""
    if _FRESH or request.node.get_closest_marker("fresh_worker"):
        yield
        return
    with _started_by(_OfForkserver):
        yield


def in_fork(function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
    """The function's result; it and its arguments can be pickled. Raises TimeoutError, and
    RuntimeError with the traceback of what the function raised. May be called on any thread."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _start(_call, sender, function, arguments)
    sender.close()
    try:
        if not receiver.poll(timeout):
            raise TimeoutError(f"no answer after {timeout:g} s")
        result, problem = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if problem is not None:
        raise RuntimeError(problem)
    return result


def _call(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        with _started_by(_OfThisProcess):
            sender.send((function(*arguments), None))
    except BaseException:
        sender.send((None, traceback.format_exc()))


def _command(
    arguments: Sequence[str], cwd: str, environment: dict[str, str], files: Sequence[str]
) -> None:
    """``files``: for standard input, output and error."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    flags = (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)
    _enter([os.open(file, flag) for file, flag in zip(files, flags, strict=True)], {})
    sys.path[:] = [folder for folder in sys.path if folder]
    sys.argv = ["cgtool", *arguments]
    write_coverage = _measure_coverage()
    from cgtool.cli.app import main

    code = 0
    try:
        with _started_by(_OfThisProcess), _started_by(_program_of_this_process, program):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    write_coverage()
    os._exit(code)


def run_cgtool(
    *arguments: object,
    cwd: Path | str,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run ``cgtool ARGUMENTS`` in ``cwd``. Raises subprocess.TimeoutExpired."""
    words = [str(argument) for argument in arguments]
    environment = dict(os.environ) if env is None else env
    if _FRESH:
        return run_fresh_cgtool(*words, cwd=cwd, env=env, timeout=timeout, stdin=stdin)
    with tempfile.TemporaryDirectory() as folder:
        given, out, err = files = [Path(folder) / name for name in ("in", "out", "err")]
        for file in files:
            file.write_text(stdin if file is given else "")
        process = _start(_command, words, str(cwd), environment, [*map(str, files)])
        process.join(timeout)
        if process.exitcode is None:
            process.terminate()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout, out.read_bytes(), err.read_bytes())
        return subprocess.CompletedProcess(
            words, process.exitcode, out.read_text(errors="replace"), err.read_text()
        )


def run_fresh_cgtool(
    *arguments: object,
    cwd: Path | str,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Like ``run_cgtool``, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "cgtool.cli.app", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env=env,
        input=stdin,
        check=False,
    )
