"""Observer of outputs that a script hands to other threads, by a pool or a queue.

Whether a thread reads an output before the next replay overwrites it is luck where nothing waits
for the thread. So the first such calls of a line begin late: if the next replay comes before that,
the script does not wait.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from cgtool.model.capture import Frames
from cgtool.observe.frames import call_user
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import HandedCall
from cgtool.observe.tensors import listed_tensors
from cgtool.torch_compat.patches import Patches

_SECONDS = 0.3
"""The most that a call begins late."""
_CALLS = 2
"""Calls of one line that begin late."""


def observe_handing_over(script: ObservedScript, patches: Patches) -> None:
    """``ThreadPoolExecutor.submit`` with an output of a graph, also one in a closure, and
    ``Queue.put``.

    Cost: a look at the arguments. Disturbs the program: the first two times that a line does this,
    the other thread begins up to 0.3 s later.
    """
    late: Counter[Frames] = Counter()
    waiting: dict[int, tuple[int, HandedCall]] = {}
    """By id of what is in a queue: the thread that has put it there."""

    def handed(values: Iterable[Any], *, in_queue: bool = False) -> HandedCall | None:
        if script.capture is not None or script.closed or not len(script.buffers):
            return None
        allocators = map(script.buffers.allocator_of, listed_tensors(values))
        graphs = frozenset(graph for graph in allocators if graph is not None and graph.replays)
        place = script.place() if graphs else ()
        if not graphs or late[place] >= _CALLS:
            return None
        late[place] += 1
        call = HandedCall(graphs, place, in_queue)
        script.publish(events.TensorsHanded(call))
        return call

    def begin(call: HandedCall) -> None:
        call.may_begin.wait(_SECONDS)
        call.has_begun = True

    def submit(
        original: Any, pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        call = handed((*args, *kwargs.values(), *_held_by(function)))
        if call is None:
            return original(pool, function, *args, **kwargs)

        @functools.wraps(function, updated=())
        def begin_late(*args: Any, **kwargs: Any) -> Any:
            begin(call)
            return call_user(function, *args, **kwargs)

        return original(pool, begin_late, *args, **kwargs)

    def put(original: Any, items: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
        call = handed((item,), in_queue=True)
        # Another item had this id, if it left the queue without a `get`.
        waiting.pop(id(item), None)
        if call is not None:
            waiting[id(item)] = threading.get_ident(), call
        return original(items, item, *args, **kwargs)

    def get(original: Any, items: Any, *args: Any, **kwargs: Any) -> Any:
        item = original(items, *args, **kwargs)
        thread, call = waiting.pop(id(item), (0, None))
        if call is not None:
            if thread != threading.get_ident():
                begin(call)
            call.has_begun = True
        return item

    patches.wrap(ThreadPoolExecutor, "submit", submit)
    patches.wrap(queue.Queue, "put", put)
    patches.wrap(queue.Queue, "get", get)


def _held_by(function: Any) -> list[torch.Tensor]:
    """The tensors in a partial or a closure."""
    held: list[Any] = []
    if isinstance(function, functools.partial):
        held += [*function.args, *function.keywords.values()]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # empty
            continue
    return listed_tensors(held)
