"""Observers of ``CUDAGraph``, ``make_graphed_callables``, streams, events and warnings."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cgtool.observe.frames import call_user
from cgtool.observe.script import events
from cgtool.observe.script.script import (
    ObservedScript,
    called_by_pytorch,
    captured_by_compiled_code,
    running_modules,
)
from cgtool.observe.script.state import GraphedCallable, StreamOrder, WatchedGraph
from cgtool.observe.tensors import key_of, tensors_in
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import BACKWARD, no_torch_function, pytree
from cgtool.torch_compat.streams import handle_of, observable_streams

_OTHER_METHODS = (
    "pool", "raw_cuda_graph_exec", "debug_dump", "enable_debug_mode", "get_graph_data",
)  # fmt: skip


def observe_graphs(script: ObservedScript, patches: Patches) -> None:
    """``CUDAGraph``: begin, end, instantiate, replay, reset, and what its methods raise.

    Cost: some Python for each call, and a look at the script's stack for each replay. Does not
    disturb the program: a replay launches what it would have launched.
    """
    graph_class = script.device.graph_class

    def guarded(phase: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call_user(original, *args, **kwargs)
        except Exception as error:
            script.publish(events.CallRaised(error, phase))
            raise

    def instantiated(watched: WatchedGraph, graph: Any, by_script: bool) -> None:
        if watched.keep_graph:
            watched.instantiated |= by_script
            if by_script or watched.template is None:
                watched.template = script.device.template(graph)

    def capture_begin(original: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        guarded("script", original, graph, *args, **kwargs)
        pool = args[0] if args else kwargs.get("pool")
        mode = args[1] if len(args) > 1 else kwargs.get("capture_error_mode", "global")
        if captured_by_compiled_code():
            script.compiled_captures += 1
        else:
            script.begin_capture(graph, pool, mode)

    def capture_end(original: Any, graph: Any) -> None:
        watched = script.graph_of(graph)
        ending = watched if watched is script.capture else None
        code_error = sys.exc_info()[1]
        if watched is not None and code_error is watched.handled_error:
            code_error = None
        if ending is not None:
            script.publish(events.CaptureEnds(ending))
            # Kernels that no op of PyTorch launches (Triton's, the user's own) count too.
            ending.device_ops = max(ending.device_ops, script.device.captured_nodes())
        try:
            with _warnings_published(script):
                call_user(original, graph)
        except Exception as error:
            if ending is not None:
                script.fail_capture(ending, error, code_error)
            else:
                script.publish(events.CallRaised(error, "script"))
            raise
        if watched is not None and code_error is not None:
            script.fail_capture(watched, code_error, code_error)
        elif watched is not None:
            script.end_capture(watched, graph)

    def replay(original: Any, graph: Any) -> None:
        watched = script.graph_of(graph)
        if watched is not None:
            script.publish(events.ReplayBegins(watched))
        guarded("replay", original, graph)
        if watched is not None:
            instantiated(watched, graph, by_script=False)
            script.end_replay(watched)
        else:
            script.compiled_replays += 1

    def reset(original: Any, graph: Any) -> None:
        watched = script.graph_of(graph)
        if watched is not None:
            script.drop(watched)
        call_user(original, graph)

    def instantiate(original: Any, graph: Any) -> None:
        guarded("script", original, graph)
        watched = script.graph_of(graph)
        if watched is not None:
            instantiated(watched, graph, by_script=True)

    def raw_cuda_graph(original: Any, graph: Any) -> Any:
        handle = guarded("script", original, graph)
        watched = script.graph_of(graph)
        if watched is not None:
            watched.handle_taken = True
        return handle

    wrappers: dict[str, Callable[..., Any]] = dict.fromkeys(
        _OTHER_METHODS, functools.partial(guarded, "script")
    )
    for wrapper in (capture_begin, capture_end, replay, reset, instantiate, raw_cuda_graph):
        wrappers[wrapper.__name__] = wrapper
    for name, wrapper in wrappers.items():
        if hasattr(graph_class, name):  # not every PyTorch has all
            patches.wrap(graph_class, name, wrapper)


class _Running(threading.local):
    """What runs on this thread."""

    call: tuple[GraphedCallable, tuple[Any, ...]] | None = None
    """The innermost call of a graphed callable, and its arguments."""


class _Callables:
    """Follows each callable from ``make_graphed_callables`` to its last backward."""

    def __init__(self, script: ObservedScript) -> None:
        self.script = script
        self._graphing: tuple[GraphedCallable, ...] | None = None
        """Callables of the ``make_graphed_callables`` that is running."""
        self._captures = 0
        self._wrappers: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
        self._running = _Running()
        self._calls: dict[GraphedCallable, int] = {}
        """How often each was called."""

    def make(
        self, original: Any, callables: Any, sample_args: Any, *args: Any, **kwargs: Any
    ) -> Any:
        single = not isinstance(callables, tuple)
        targets = (callables,) if single else callables
        samples = (sample_args,) if single else sample_args
        graphed = tuple(self._described(*pair) for pair in zip(targets, samples, strict=False))
        self.script.publish(events.CallablesGraphing(targets, graphed))
        self._graphing, self._captures = graphed, 0
        try:
            results = call_user(original, callables, sample_args, *args, **kwargs)
        finally:
            self._graphing = None
        self.script.publish(events.CallablesGraphed(graphed, self._captures))
        pairs = zip((results,) if single else results, graphed, strict=False)
        followed = tuple(self._follow(*pair) for pair in pairs)
        return followed[0] if single else followed

    def _follow(self, result: Any, graphed: GraphedCallable) -> Any:
        """What the script calls instead of ``result``; a module stays, with another forward."""
        if isinstance(result, torch.nn.Module):
            result.forward = self._follow_calls(result.forward, graphed)
            return result
        return self._follow_calls(result, graphed)

    def _follow_calls(self, function: Callable[..., Any], graphed: GraphedCallable) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            module = graphed.module()
            if module is not None and module.training != graphed.training:
                # PyTorch calls the original forward.
                self.script.publish(events.GraphedCallFellBack(graphed))
                return call_user(function, *args, **kwargs)
            running = self._running
            outer, running.call = running.call, (graphed, args)
            try:
                result = call_user(function, *args, **kwargs)
            finally:
                running.call = outer
            self._follow_backward(result, graphed)
            return result

        self._wrappers.add(call)
        return call

    def _follow_backward(self, result: Any, graphed: GraphedCallable) -> None:
        number = self._calls.get(graphed)

        def backward_begins(_gradients: Any) -> None:
            if self._calls.get(graphed) != number:
                graphed.called_twice = True
                self.script.publish(events.GraphedBackwardTooLate(graphed))

        with no_torch_function():
            for tensor in tensors_in(result):
                if tensor.grad_fn is not None:
                    # All outputs come from one autograd node.
                    tensor.grad_fn.register_prehook(backward_begins)
                    return

    def capture_began(self, event: events.CaptureBegan) -> None:
        if self._graphing is None:
            return
        # PyTorch captures all forwards in order before the first backward.
        if self._captures < len(self._graphing):
            event.graph.callable = self._graphing[self._captures]
        else:
            event.graph.callable = GraphedCallable()
        event.graph.made_with = self._graphing
        self._captures += 1

    def replay_begins(self, event: events.ReplayBegins) -> None:
        running = self._running
        if running.call is None or event.graph.callable is not running.call[0]:
            return
        graphed, arguments = running.call
        self._calls[graphed] = self._calls.get(graphed, 0) + 1
        called = next(running_modules(sys._getframe(1)), None)
        leaves = tuple(pytree.tree_leaves(arguments))
        self.script.publish(events.GraphedCall(graphed, leaves, called))

    def _described(self, target: Any, samples: Any) -> GraphedCallable:
        leaves = list(tensors_in(samples))
        graphed = GraphedCallable(
            samples=tuple(weakref.ref(tensor) for tensor in leaves),
            static_keys=frozenset(key_of(tensor) for tensor in leaves),
        )
        if isinstance(target, torch.nn.Module):
            graphed.module = weakref.ref(target)
            graphed.training = target.training
            graphed.trainable = {id(own): own.requires_grad for own in target.parameters()}
            graphed.again = target.__dict__.get("forward") in self._wrappers
        return graphed


def observe_callables(script: ObservedScript, patches: Patches) -> None:
    """``make_graphed_callables``, calls of what it returns, and their backwards.

    Cost: for each call of a graphed callable a look at its arguments and a hook on its autograd
    node. Does not disturb the program: the graphs are PyTorch's own.
    """
    callables = _Callables(script)
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.wrap(owner, "make_graphed_callables", callables.make)
    script.subscribe(events.CaptureBegan, callables.capture_began)
    script.subscribe(events.ReplayBegins, callables.replay_begins)


def observe_backward(script: ObservedScript, patches: Patches) -> None:
    """Captured backwards, and what PyTorch warns of in them, each time and not once per process.

    Cost: nothing outside captures. Warnings of a captured backward are shown after it.
    """

    def run_backward(original: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        if script.capture is None:
            return call_user(original, roots, *args, **kwargs)
        script.publish(events.BackwardBegins(tuple(roots)))
        with _warnings_published(script):
            return call_user(original, roots, *args, **kwargs)

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
    """Streams and events: what orders them, and where the host waits.

    Cost: some Python for each call. Does not disturb the program.
    """

    def order() -> StreamOrder:
        return script.order if script.capture is None else script.capture.order

    def handle(stream: Any) -> int:
        return script.device.stream() if stream is None else handle_of(stream)

    def after(
        owner: Any, name: str, note: Callable[..., None], *, in_captures: bool = True
    ) -> None:
        """Calls of ``owner.name`` are followed by ``note(result, self, ...)``, whose other
        parameters have PyTorch's names: the script may pass them by keyword."""

        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = call_user(original, *args, **kwargs)
            except Exception as error:
                script.thread_raised(error)
                raise
            if not script.closed and (in_captures or script.capture is None):
                note(result, *args, **kwargs)
            return result

        patches.wrap(owner, name, call)

    def synchronize(_result: Any, *_args: Any, **_kwargs: Any) -> None:
        script.order.host_waits()
        if not called_by_pytorch():
            script.publish(events.HostWaited("torch.cuda.synchronize", None))

    def synchronize_stream(_result: Any, self: Any) -> None:
        script.order.host_waits(handle_of(self))
        script.publish(events.HostWaited("Stream.synchronize", None))

    def synchronize_event(_result: Any, self: Any) -> None:
        script.order.host_waits_for_event(self)
        script.publish(events.HostWaited("Event.synchronize", None))

    def query_stream(done: bool, self: Any) -> None:
        if done:
            script.order.host_waits(handle_of(self))

    def query_event(done: bool, self: Any) -> None:
        if done:
            script.order.host_waits_for_event(self)

    def wait_stream(_result: Any, self: Any, stream: Any) -> None:
        order().wait_stream(handle_of(self), handle_of(stream))

    def wait_event(_result: Any, self: Any, event: Any) -> None:
        order().wait_event(handle_of(self), event)

    def record_event(result: Any, self: Any, event: Any = None) -> None:
        # PyTorch returns the event, made if need be.
        order().record(event or result, handle_of(self))

    def record(_result: Any, self: Any, stream: Any = None) -> None:
        order().record(self, handle(stream))

    def wait(_result: Any, self: Any, stream: Any = None) -> None:
        order().wait_event(handle(stream), self)

    if not script.device.simulated:
        patches.enter_context(observable_streams())
    after(torch.cuda, "synchronize", synchronize, in_captures=False)
    after(torch.accelerator, "synchronize", synchronize, in_captures=False)
    for owner in set[Any]((torch.cuda.Stream, torch.Stream)):
        after(owner, "synchronize", synchronize_stream, in_captures=False)
        after(owner, "query", query_stream, in_captures=False)
        after(owner, "wait_stream", wait_stream)
        after(owner, "wait_event", wait_event)
        after(owner, "record_event", record_event)
    for owner in set[Any]((torch.cuda.Event, torch.Event)):
        after(owner, "synchronize", synchronize_event, in_captures=False)
        after(owner, "query", query_event, in_captures=False)
        after(owner, "record", record)
        after(owner, "wait", wait)
