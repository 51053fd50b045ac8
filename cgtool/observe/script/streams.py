"""Observer of streams and events: what orders them, and where the host waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cgtool.observe.frames import call_user
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript, called_by_pytorch
from cgtool.observe.script.state import EXTERNAL, StreamOrder, is_external
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.streams import handle_of, make_streams_observable


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

        (patches.stand_in if owner is torch.Tensor else patches.wrap)(owner, name, call)

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

    def waits_for_itself(stream: int) -> None:
        script.order.own_waits[stream] = script.clock, script.place()

    def wait_stream(_result: Any, self: Any, stream: Any) -> None:
        waiting, other = handle_of(self), handle_of(stream)
        order().wait_stream(waiting, other)
        if waiting == other:
            waits_for_itself(waiting)

    def wait_event(_result: Any, self: Any, event: Any) -> None:
        wait(None, event, self)

    def record_event(result: Any, self: Any, event: Any = None) -> None:
        # PyTorch returns the event, made if need be.
        record(None, event or result, self)

    def record(_result: Any, self: Any, stream: Any = None) -> None:
        if script.capture is not None and getattr(self, EXTERNAL, False):
            script.capture.records.append(self)
            script.order.create(self)
        else:
            order().record(self, handle(stream))

    def wait(_result: Any, self: Any, stream: Any = None) -> None:
        if script.capture is not None and getattr(self, EXTERNAL, False):
            if script.order.has(self):
                script.capture.waits_for.append(self)
            return
        waiting = handle(stream)
        order().wait_event(waiting, self)
        if order().is_of(self, waiting):
            waits_for_itself(waiting)

    def record_stream(_result: Any, tensor: torch.Tensor, _stream: Any) -> None:
        if script.capture is not None:
            script.publish(events.StreamRecorded(tensor))

    def make_event(original: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
        event = original(kind, *args, **kwargs)
        setattr(event, EXTERNAL, is_external(args, kwargs))
        return event

    if not script.device.simulated:
        make_streams_observable(patches)
        patches.wrap(torch.cuda.Event, "__new__", make_event)
    after(torch.Tensor, "record_stream", record_stream)
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
