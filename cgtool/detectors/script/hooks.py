"""Methods and functions of PyTorch's that are replaced while a script runs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.detectors.script.modes import DispatchObserver, FunctionObserver
from cgtool.detectors.script.run import Watch
from cgtool.detectors.script.threads import followed
from cgtool.detectors.script.warned import heard, hook_backward
from cgtool.observe.frames import call_user, here, is_internal


def _replaced(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    own = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    if own is None:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, own)


def _guarded(watch: Watch, before: Callable[..., Any]) -> Callable[..., Any]:
    """A method of CUDAGraph's whose errors are told."""

    @functools.wraps(before)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call_user(before, self, *args, **kwargs)
        except Exception as error:
            watch.explain(error, "script", here())
            raise

    return call


_GUARDED = (
    "instantiate", "pool", "raw_cuda_graph", "raw_cuda_graph_exec", "debug_dump",
    "enable_debug_mode", "get_graph_data",
)  # fmt: skip


def _hook_graphs(stack: contextlib.ExitStack, watch: Watch) -> None:
    kind = watch.machine.graph_class
    begin, end, replay, reset = kind.capture_begin, kind.capture_end, kind.replay, kind.reset

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            begin(self, *args, **kwargs)
        except Exception as error:
            watch.explain(error, "script", here())
            raise
        pool = args[0] if args else kwargs.get("pool")
        mode = args[1] if len(args) > 1 else kwargs.get("capture_error_mode", "global")
        watch.begun(self, pool, mode)

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        during = sys.exc_info()[1]
        watch.ending(self)
        try:
            with heard(watch.warned):
                end(self)
        except Exception as error:
            if watch.capture is None or watch.of(self) is not watch.capture:
                watch.explain(error, "script", here())
            else:
                watch.failed(self, error, during)
            raise
        if during is not None:
            watch.failed(self, during, during)
        else:
            watch.ended(self)

    @functools.wraps(replay)
    def replay_it(self: Any) -> None:
        watch.replaying(self)
        try:
            replay(self)
        except Exception as error:
            watch.explain(error, "replay", here())
            raise
        watch.instantiated(self)
        watch.replayed(self)

    instantiate = getattr(kind, "instantiate", None)
    if instantiate is not None:

        @functools.wraps(instantiate)
        def instantiate_it(self: Any) -> None:
            instantiate(self)
            watch.instantiated(self, by_script=True)

        _replaced(stack, kind, "instantiate", instantiate_it)

    @functools.wraps(reset)
    def reset_it(self: Any) -> None:
        watched = watch.of(self)
        if watched is not None:
            watch.dropped(watched)
        reset(self)

    for name, value in (
        ("capture_begin", capture_begin),
        ("capture_end", capture_end),
        ("replay", replay_it),
        ("reset", reset_it),
    ):
        _replaced(stack, kind, name, value)
    for name in _GUARDED:
        if hasattr(kind, name):
            _replaced(stack, kind, name, _guarded(watch, getattr(kind, name)))


def _hook_templates(stack: contextlib.ExitStack, watch: Watch) -> None:
    kind = watch.machine.graph_class
    raw = getattr(kind, "raw_cuda_graph", None)
    if raw is None:
        return

    @functools.wraps(raw)
    def raw_cuda_graph(self: Any) -> Any:
        handle = raw(self)
        watched = watch.of(self)
        if watched is not None:
            watched.handed_out = True
        return handle

    _replaced(stack, kind, "raw_cuda_graph", raw_cuda_graph)


def _hook_streams(stack: contextlib.ExitStack, watch: Watch) -> None:
    order = watch.order
    stream_class: Any = torch.cuda.Stream
    event_class: Any = torch.cuda.Event

    def current(stream: Any) -> int:
        return watch.machine.stream() if stream is None else int(stream.cuda_stream)

    def around(owner: Any, name: str, after: Callable[..., None]) -> None:
        before = getattr(owner, name)

        @functools.wraps(before)
        def call(*args: Any, **kwargs: Any) -> Any:
            made = call_user(before, *args, **kwargs)
            if watch.capture is None and not watch.closed:
                after(made, *args, **kwargs)
            return made

        _replaced(stack, owner, name, call)

    around(
        stream_class,
        "wait_stream",
        lambda _made, self, stream: order.wait_stream(self.cuda_stream, stream.cuda_stream),
    )
    around(
        stream_class,
        "wait_event",
        lambda _made, self, event: order.wait_event(self.cuda_stream, event),
    )
    around(
        event_class,
        "record",
        lambda _made, self, stream=None: order.record(self, current(stream)),
    )
    around(
        stream_class,
        "record_event",
        lambda made, self, _event=None: order.record(made, self.cuda_stream),
    )
    around(
        event_class,
        "wait",
        lambda _made, self, stream=None: order.wait_event(current(stream), self),
    )

    def waited(what: str) -> None:
        for check in watch.checks:
            check.waited(what, None)

    def whole(_made: Any, *_args: Any, **_kwargs: Any) -> None:
        order.host_waits()
        if not is_internal(sys._getframe(2).f_code):
            waited("torch.cuda.synchronize")

    def for_stream(_made: Any, self: Any) -> None:
        order.host_waits(self.cuda_stream)
        waited("Stream.synchronize")

    def for_event(_made: Any, self: Any) -> None:
        order.host_waits_for_event(self)
        waited("Event.synchronize")

    def asked_event(made: Any, self: Any) -> None:
        if made:
            order.host_waits_for_event(self)

    def asked_stream(made: Any, self: Any) -> None:
        if made:
            order.host_waits(self.cuda_stream)

    around(torch.cuda, "synchronize", whole)
    around(stream_class, "synchronize", for_stream)
    around(event_class, "synchronize", for_event)
    around(event_class, "query", asked_event)
    around(stream_class, "query", asked_stream)

    def emptied(_made: Any) -> None:
        if not is_internal(sys._getframe(2).f_code):
            for check in watch.checks:
                check.emptied()

    around(torch.cuda, "empty_cache", emptied)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Hooks and modes are in place while the context is entered."""
    with contextlib.ExitStack() as stack:
        _hook_graphs(stack, watch)
        _hook_templates(stack, watch)
        _hook_streams(stack, watch)
        hook_backward(stack, watch)
        stack.enter_context(followed(watch))
        stack.enter_context(FunctionObserver(watch))
        stack.enter_context(DispatchObserver(watch))
        yield
