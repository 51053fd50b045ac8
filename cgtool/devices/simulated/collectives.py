"""Collectives on the simulated device: gloo takes the place of NCCL.

During capture nothing is communicated, as on a GPU: a rank may capture before the others do. A
replay runs the collectives of its graph in their order. It waits for one as soon as another node
touches its tensors, and for all at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from time import sleep  # as it is before the program replaces it
from typing import Any

import torch

from cgtool.devices.simulated.device_model import DeviceModel
from cgtool.findings import code
from cgtool.observe.collectives import given
from cgtool.observe.frames import call_op
from cgtool.observe.tensors import HOST, key_of, listed_tensors, place_of, tensors_in
from cgtool.torch_compat import private
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import schema_of

COLLECTIVES = "c10d::"
"""How the names of ops begin that hand tensors to a process group, and return its work."""
NCCL_FIRST_CALL_IN_CAPTURE = code("nccl-first-call-in-capture")
_POINT_TO_POINT = "c10d::send", "c10d::recv"
_PAUSE = 0.001
"""Seconds."""
_connected: set[str] = set()
"""The process groups that have communicated."""
_started: list[Any] = []
"""Futures of asynchronous collectives outside graphs that may not be done. Gloo cannot tell it of
what is sent to one rank, or received from it."""


def run(device: DeviceModel, op: Any, run: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a collective; in a capture, return as if it had run."""
    group = private.group_of(given(op, args, kwargs)["process_group"])
    if not (device.current_is_capturing and not device.on_host):
        result = call_op(run, args, kwargs)
        _connected.add(group.group_name)
        begun = [each for each in _started if not each.done()]
        is_async = given(op, args, kwargs).get("async_op") is not False
        if is_async and not op.name().startswith(_POINT_TO_POINT):
            begun += (work.get_future() for work in _works(result))
        _started[:] = begun
        return result
    # With the device of the process known, it is connected when it is made. Pairs may have been
    # connected by each other.
    is_known = group.bound_device_id is not None or op.name().startswith(_POINT_TO_POINT)
    if not is_known and group.group_name not in _connected:
        device.refuse(
            NCCL_FIRST_CALL_IN_CAPTURE,
            f"the first collective of process group {group.group_name}",
            why="NCCL connects the ranks at the first one, which allocates memory and waits",
            fix="run a collective on this process group once before the capture",
        )
    results = [
        # Of all collectives, the first argument is what they write.
        private.done_work(listed_tensors(args[:1])) if "Work" in str(result.type) else args[0]
        for result in schema_of(op).returns
    ]
    return results[0] if len(results) == 1 else tuple(results)


def synchronize() -> None:
    """Wait for all collectives that have begun, as the device does. Not by methods of their works,
    which the program may have to call."""
    while not all(each.done() for each in _started):
        sleep(_PAUSE)
    _started.clear()  # they keep the tensors


def _works(output: Any) -> list[Any]:
    """The works that a collective has returned."""
    results = output if isinstance(output, tuple) else (output,)
    return [private.work_of(each) for each in results if isinstance(each, torch.ScriptObject)]


class Running:
    """The collectives of a replay that are not done."""

    def __init__(self) -> None:
        self._works: list[tuple[Any, set[int | None]]] = []

    def began(self, op: Any, args: Args, kwargs: Kwargs, output: Any) -> None:
        """A collective has returned ``output``."""
        keys = set(map(key_of, tensors_in((args, kwargs))))
        self._works += ((work, keys) for work in _works(output))
        # Without `async_op`, it runs on the current stream, and what follows is behind it.
        if given(op, args, kwargs).get("async_op") is False:
            self.wait()

    def wait(self, values: Iterable[Any] | None = None) -> None:
        """Wait for those whose tensors are among ``values``; without these, for all."""
        if not self._works:
            return
        keys = None if values is None else set(map(key_of, tensors_in(values)))
        waited = [each for each in self._works if keys is None or not keys.isdisjoint(each[1])]
        self._works = [each for each in self._works if each not in waited]
        for work, _keys in waited:
            work.wait()


def install(patches: Patches, inside: Callable[[str], AbstractContextManager[None]]) -> None:
    """``init_process_group("nccl")`` connects the ranks by gloo. ``inside``: as of
    ``Placement``."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        return
    c10d: Any = distributed.distributed_c10d

    class Options:
        """Replaces ``ProcessGroupNCCL.Options``."""

    class ProcessGroupNCCL(distributed.ProcessGroupGloo):  # type: ignore[misc]
        supports_splitting = False

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            super().__init__(store, rank, size, timeout=private.timeout_of(options))
            kept.append(self)

    ProcessGroupNCCL.Options = Options
    kept: list[Any] = []
    """Of an object of C++ whose object in Python is gone, the class is gloo's."""
    for owner in (c10d, distributed):
        patches.set(owner, "ProcessGroupNCCL", ProcessGroupNCCL)
    # Tensors of the simulated device are on the CPU, for the C++ of collectives.
    devices = {**c10d.Backend.backend_capability, "nccl": ["cpu", "cuda"]}
    patches.set(c10d.Backend, "backend_capability", devices)
    # A build without NCCL has none, and warns.
    patches.set(c10d, "default_pg_nccl_timeout", timedelta(minutes=10))

    def allocate(original: Any, reducer: Any, *args: Any, **kwargs: Any) -> Any:
        # The C++ of DDP names the real device of the parameters.
        if args:
            places[id(reducer)] = place_of(args[0][0])
        with inside(places.get(id(reducer), HOST)):
            return original(reducer, *args, **kwargs)

    places: dict[int, str] = {}
    for point in private.BUCKETS:
        patches.wrap(*point, allocate)
    for owner in (c10d, distributed):
        patches.set(owner, "is_nccl_available", lambda: True)
