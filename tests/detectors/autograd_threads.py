"""Autograd as it is on a GPU: a backward runs on a thread of autograd's own, which has no line of
the program's, while the thread that called it waits. On a CPU it runs on that thread itself.

The thread is the same for all backwards, but those that a backward calls.
"""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.autograd import Variable

from cgtool.detectors.streams import CaptureInProgress
from cgtool.torch_compat import call_key
from cgtool.torch_compat.op_key import watch_thread
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD, excluded_keys, force_keys, included_keys


class _Thread:
    """Runs one function after the other."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._work: Callable[[], None] | None = None
        self._wanted, self._done = _thread.allocate_lock(), _thread.allocate_lock()

        def loop() -> None:
            while True:
                self._wanted.acquire()
                if self._work is None:
                    return
                self._work()
                # A thread that waits keeps nothing of the program alive.
                self._work = None
                self._done.release()

        _without_file(loop)
        _as_pytorch(_Thread.run)
        self._wanted.acquire()
        self._done.acquire()
        _thread.start_new_thread(loop, ())

    def run(self, work: Callable[[], None]) -> None:
        self._work = work
        self._wanted.release()
        self._done.acquire()

    def end(self) -> None:
        self._wanted.release()


@contextlib.contextmanager
def backwards_on_threads(device: CaptureInProgress) -> Iterator[None]:
    """While entered, backwards run as on a GPU. To be entered before the observers."""
    idle: list[_Thread] = []
    formulas = call_key._RUNS_FORMULAS

    def run_backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return original(*args, **kwargs)  # the other thread would not know the transform
        # The engine has the same on both threads.
        stream, gradients = device.current, torch.is_grad_enabled()
        keys = included_keys(), excluded_keys()
        results: list[Any] = []
        errors: list[BaseException] = []

        def work() -> None:
            device.current = stream
            try:
                with torch.set_grad_enabled(gradients), force_keys(*keys), watch_thread():
                    results.append(Variable._execution_engine.run_backward(*args, **kwargs))
            except BaseException as error:
                errors.append(error)

        _without_file(work)
        # A frame of no file runs the formulas of autograd, as none does on a GPU.
        call_key._RUNS_FORMULAS = (*formulas, work.__code__)
        # A forked process has none of the threads.
        thread = next((each for each in idle if each.process == os.getpid()), None)
        if thread is None:
            thread = _Thread()
        else:
            idle.remove(thread)
        thread.run(work)
        idle.append(thread)
        args, kwargs = (), {}
        for error in errors:
            raise error
        return results[0]

    _as_pytorch(run_backward)
    with Patches() as patches:
        patches.wrap(*BACKWARD, run_backward)
        yield
    call_key._RUNS_FORMULAS = formulas
    for thread in idle:
        if thread.process == os.getpid():
            thread.end()


def _as_pytorch(function: FunctionType) -> None:
    """Its frames are none of the program's, and look like those of a backward."""
    function.__code__ = function.__code__.replace(co_filename=torch.__file__, co_name=BACKWARD.name)


def _without_file(function: FunctionType) -> None:
    """Its frames count as none: PyTorch's threads have none at all."""
    function.__code__ = function.__code__.replace(co_filename="<autograd>")
