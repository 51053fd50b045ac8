"""Threads of the script's: what they do on the device while another thread captures."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from cgtool.detectors.script.run import Watch
from cgtool.findings.registry import code
from cgtool.observe.frames import call_op
from cgtool.observe.storage import tensors_in
from cgtool.torch_compat.private import TorchDispatchMode

MIXED_EAGER_WORK_DURING_CAPTURE = code("mixed-eager-work-during-capture")
OTHER_THREAD_CUDA_CALL = code("other-thread-cuda-call")

_SILENT = ("aten::detach", "aten::alias", "aten::is_pinned", "aten::record_stream", "prim::")


class ThreadObserver(TorchDispatchMode):
    """Ops of a thread that the script started."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        graph = self.watch.capture
        if graph is not None and threading.get_ident() != self.watch.thread:
            self._told(func, args, kwargs)
            return call_op(func, args, kwargs)
        made = call_op(func, args, kwargs)
        self.watch.eager(func, args, kwargs, made)
        return made

    def _told(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        graph = self.watch.capture
        place = self.watch.machine.place
        device = kwargs.get("device")
        on_device = any(place(one) == "device" for one in tensors_in((args, kwargs)))
        made_there = device is not None and str(device).startswith("cuda")
        if self.watch.machine.simulated and not self.watch.machine.on_host:
            # Its devices are all called cpu by the time that an op runs.
            made_there = device is not None
        name = str(func)
        if graph is None or not (on_device or made_there) or name.startswith(_SILENT):
            return
        if graph.mode == "global":
            graph.disturbed = True
            self.watch.report(
                OTHER_THREAD_CUDA_CALL,
                f"the thread {threading.current_thread().name} calls CUDA while another one "
                "captures: an allocation here ends the capture",
                self.watch.here(),
                phase="capture",
            )
        else:
            self.watch.report(
                MIXED_EAGER_WORK_DURING_CAPTURE,
                f"the thread {threading.current_thread().name} runs work on the device while "
                "another one captures",
                self.watch.here(),
                phase="capture",
            )


@contextlib.contextmanager
def followed(watch: Watch) -> Iterator[None]:
    """Threads that start while the context is entered are watched."""
    run = threading.Thread.run

    @functools.wraps(run)
    def watched(thread: threading.Thread) -> None:
        with contextlib.ExitStack() as stack:
            for mode in watch.machine.modes_of_thread():
                stack.enter_context(mode)
            stack.enter_context(ThreadObserver(watch))
            run(thread)

    threading.Thread.run = watched  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]
