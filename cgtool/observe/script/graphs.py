"""Observers of ``CUDAGraph``, of streams and events, and of PyTorch's warnings."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.observe.frames import call_user, here
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript, called_by_pytorch
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD

_OTHER_METHODS = (
    "pool", "raw_cuda_graph_exec", "debug_dump", "enable_debug_mode", "get_graph_data",
)  # fmt: skip


def observe_graphs(script: ObservedScript, patches: Patches) -> None:
    """``CUDAGraph``: begin, end, instantiate, replay, reset, and what its methods raise.

    Cost: some Python for each call, and a look at the script's stack for each replay. Does not
    disturb the program: a replay launches what it would have launched.
    """
    graph_class = script.device.graph_class

    def raised(error: Exception, phase: str) -> None:
        script.publish(events.CallRaised(error, phase, here()))

    def capture_begin(original: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        try:
            call_user(original, graph, *args, **kwargs)
        except Exception as error:
            raised(error, "script")
            raise
        pool = args[0] if args else kwargs.get("pool")
        mode = args[1] if len(args) > 1 else kwargs.get("capture_error_mode", "global")
        script.begin_capture(graph, pool, mode)

    def capture_end(original: Any, graph: Any) -> None:
        code_error = sys.exc_info()[1]
        script.ending_capture(graph)
        try:
            with _warnings_published(script):
                call_user(original, graph)
        except Exception as error:
            if script.capture is None or script.graph_of(graph) is not script.capture:
                raised(error, "script")
            else:
                script.fail_capture(graph, error, code_error)
            raise
        if code_error is not None:
            script.fail_capture(graph, code_error, code_error)
        else:
            script.end_capture(graph)

    def replay(original: Any, graph: Any) -> None:
        script.begin_replay(graph)
        try:
            call_user(original, graph)
        except Exception as error:
            raised(error, "replay")
            raise
        script.instantiated(graph)
        script.end_replay(graph)

    def reset(original: Any, graph: Any) -> None:
        watched = script.graph_of(graph)
        if watched is not None:
            script.drop(watched)
        call_user(original, graph)

    def other(original: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call_user(original, graph, *args, **kwargs)
        except Exception as error:
            raised(error, "script")
            raise

    def instantiate(original: Any, graph: Any) -> None:
        other(original, graph)
        script.instantiated(graph, by_script=True)

    def raw_cuda_graph(original: Any, graph: Any) -> Any:
        handle = other(original, graph)
        watched = script.graph_of(graph)
        if watched is not None:
            watched.handle_taken = True
        return handle

    for wrapper in (capture_begin, capture_end, replay, reset):
        patches.wrap(graph_class, wrapper.__name__, wrapper)
    for wrapper in (instantiate, raw_cuda_graph):
        if hasattr(graph_class, wrapper.__name__):
            patches.wrap(graph_class, wrapper.__name__, wrapper)
    for name in _OTHER_METHODS:
        if hasattr(graph_class, name):
            patches.wrap(graph_class, name, other)


def observe_backward_warnings(script: ObservedScript, patches: Patches) -> None:
    """What PyTorch warns of in a captured backward, each time and not once a process.

    Cost: nothing outside captures. Warnings of a captured backward are shown after it.
    """

    def run_backward(original: Any, *args: Any, **kwargs: Any) -> Any:
        if script.capture is None:
            return call_user(original, *args, **kwargs)
        with _warnings_published(script):
            return call_user(original, *args, **kwargs)

    patches.wrap(*BACKWARD, run_backward)


@contextlib.contextmanager
def _warnings_published(script: ObservedScript) -> Iterator[None]:
    """Every warning of the block is published, then shown as it would have been."""
    always = torch.is_warn_always_enabled()
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.set_warn_always(True)
            yield
    finally:
        torch.set_warn_always(always)
        for warning in caught:
            script.publish(events.PyTorchWarned(str(warning.message)))
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def observe_streams(script: ObservedScript, patches: Patches) -> None:
    """Streams and events outside captures: what orders them, and where the host waits.

    Cost: some Python for each call. Does not disturb the program.
    """
    order = script.order

    def handle(stream: Any) -> int:
        return script.device.stream() if stream is None else int(stream.cuda_stream)

    def after(owner: Any, name: str, note: Callable[..., None]) -> None:
        """Calls of ``owner.name`` outside captures are followed by ``note(result, self, ...)``,
        whose other parameters have PyTorch's names: the script may pass them by keyword."""

        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            result = call_user(original, *args, **kwargs)
            if script.capture is None and not script.closed:
                note(result, *args, **kwargs)
            return result

        patches.wrap(owner, name, call)

    def synchronize(_result: Any, *_args: Any, **_kwargs: Any) -> None:
        order.host_waits()
        if not called_by_pytorch():
            script.host_synchronized("torch.cuda.synchronize")

    def synchronize_stream(_result: Any, self: Any) -> None:
        order.host_waits(self.cuda_stream)
        script.host_synchronized("Stream.synchronize")

    def synchronize_event(_result: Any, self: Any) -> None:
        order.host_waits_for_event(self)
        script.host_synchronized("Event.synchronize")

    def query_stream(done: bool, self: Any) -> None:
        if done:
            order.host_waits(self.cuda_stream)

    def query_event(done: bool, self: Any) -> None:
        if done:
            order.host_waits_for_event(self)

    def wait_stream(_result: Any, self: Any, stream: Any) -> None:
        order.wait_stream(self.cuda_stream, stream.cuda_stream)

    def wait_event(_result: Any, self: Any, event: Any) -> None:
        order.wait_event(self.cuda_stream, event)

    def record_event(result: Any, self: Any, event: Any = None) -> None:
        # PyTorch returns the event, made if need be.
        order.record(event or result, self.cuda_stream)

    def record(_result: Any, self: Any, stream: Any = None) -> None:
        order.record(self, handle(stream))

    def wait(_result: Any, self: Any, stream: Any = None) -> None:
        order.wait_event(handle(stream), self)

    after(torch.cuda, "synchronize", synchronize)
    after(torch.cuda.Stream, "synchronize", synchronize_stream)
    after(torch.cuda.Stream, "query", query_stream)
    after(torch.cuda.Stream, "wait_stream", wait_stream)
    after(torch.cuda.Stream, "wait_event", wait_event)
    after(torch.cuda.Stream, "record_event", record_event)
    after(torch.cuda.Event, "synchronize", synchronize_event)
    after(torch.cuda.Event, "query", query_event)
    after(torch.cuda.Event, "record", record)
    after(torch.cuda.Event, "wait", wait)
