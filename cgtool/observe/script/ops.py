"""Observers of ops and of reads on the host, on the script's thread and on those that it starts."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cgtool.observe.frames import call_op, call_user, here
from cgtool.observe.ops import op_name
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.storage import tensors_in
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import TorchDispatchMode, no_torch_function

_READS = frozenset(
    (
        torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__repr__,
        torch.Tensor.__format__,
    )
)  # fmt: skip
_MOVES = frozenset((torch.Tensor.cpu, torch.Tensor.to, torch.Tensor.copy_))
_NO_WORK = ("aten::detach", "aten::alias", "aten::is_pinned", "aten::record_stream", "prim::")
"""Ops that launch nothing and allocate nothing."""


class _ScriptMode(TorchDispatchMode):
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # As in observe.ops.OpRecorder: the wrapper would import torch._dynamo at its first call.
        return False

    def __init__(self, script: ObservedScript) -> None:
        super().__init__()
        self.script = script


class DispatchObserver(_ScriptMode):
    """Every ATen op of the script's thread: captured ones go to the recorder of the device, eager
    ones that touch a buffer of some graph are published.

    Cost: some Python for each op, and what the recorder costs for a captured one. Disturbs:
    ``torch.compile`` runs eagerly under a dispatch mode, and ATen takes other paths where it asks
    ``isTensorSubclassLike``.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.script.device.recorder
        if recorder is not None:
            return recorder.observe(func, args, kwargs, func, sys._getframe().f_back)
        result = call_op(func, args, kwargs)
        self.script.eager_op(func, args, kwargs, result)
        return result


class FunctionObserver(TorchFunctionMode):
    """Calls that read a tensor on the host and dispatch no op of their own.

    Cost: some Python for each call of a torch function. Disturbs: ``has_torch_function`` is
    true, so that some Python functions of PyTorch take another path.
    """

    def __init__(self, script: ObservedScript) -> None:
        super().__init__()
        self.script = script

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = call_op(func, args, kwargs)
        if func in _READS or func in _MOVES:
            self._note_read(func, args, kwargs, result)
        elif isinstance(result, torch.Tensor):
            self.script.returned(result)
        return result

    def _note_read(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is None:
            return
        place = self.script.device.place
        with no_torch_function():
            if func in _READS:
                if place(tensor) == "device":
                    self.script.host_waited(func.__name__, tensor)
                return
            source = args[1] if func is torch.Tensor.copy_ and len(args) > 1 else tensor
            if not isinstance(source, torch.Tensor) or not isinstance(result, torch.Tensor):
                return
            target = place(result)
            waits = target == "host" or (target == "pinned" and not kwargs.get("non_blocking"))
            if waits and place(source) == "device":
                self.script.host_waited(func.__name__, source)


class ThreadObserver(_ScriptMode):
    """Ops of a thread that the script started: eager ones as on the script's own thread, and work
    on the device while another thread captures.

    Cost and disturbance are those of ``DispatchObserver``.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.script.capture is not None and threading.get_ident() != self.script.capture_thread:
            # Before the op: it may end the capture, and raise here too.
            self._note_work(func, args, kwargs)
            return call_op(func, args, kwargs)
        result = call_op(func, args, kwargs)
        self.script.eager_op(func, args, kwargs, result)
        return result

    def _note_work(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        script, graph = self.script, self.script.capture
        device = kwargs.get("device")
        uses_device = any(
            script.device.place(tensor) == "device" for tensor in tensors_in((args, kwargs))
        )
        allocates = device is not None and str(device).startswith("cuda")
        if script.device.simulated and not script.device.on_host:
            # Its devices are all called cpu by the time that an op runs.
            allocates = device is not None
        if graph is None or not (uses_device or allocates) or op_name(func).startswith(_NO_WORK):
            return
        graph.disturbed |= graph.mode == "global"
        script.publish(events.ThreadWorked(graph, threading.current_thread().name, here()))


def observe_threads(script: ObservedScript, patches: Patches) -> None:
    """Threads that the script starts run under a ``ThreadObserver``.

    Cost and disturbance are those of the ``ThreadObserver``.
    """

    def run(original: Any, thread: threading.Thread) -> None:
        with contextlib.ExitStack() as modes:
            for mode in script.device.thread_modes():
                modes.enter_context(mode)
            modes.enter_context(ThreadObserver(script))
            call_user(original, thread)

    patches.wrap(threading.Thread, "run", run)


def observe_ops(script: ObservedScript, patches: Patches) -> None:
    """Ops and host reads of the script's own thread: ``FunctionObserver``, ``DispatchObserver``."""
    patches.enter_context(FunctionObserver(script))
    patches.enter_context(DispatchObserver(script))
