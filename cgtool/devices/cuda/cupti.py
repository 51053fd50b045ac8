"""CUPTI callbacks through ctypes, on the library that torch loaded.

CUPTI calls back from inside the CUDA call:

- ``watch_nodes``: when a node is added to a graph (resource domain, GRAPHNODE_CREATED);
- ``watch_launches``: when a launch, copy or fill is requested (API domains), for eager runs.

Before CUDA 13.5, CUPTI admits one subscriber per process: with a profiler attached (Nsight Systems,
``torch.profiler`` in the user's code) both raise ``CuptiBusy``.

Source of the constants and layouts: cupti_callbacks.h and cupti_result.h of CUDA 12.8 to 13.0.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

_DRIVER_API, _RUNTIME_API, _RESOURCE = 1, 2, 3
_GRAPHNODE_CREATED = 13
_ERROR_MULTIPLE_SUBSCRIBERS = 39
_API_ENTER = 0

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
pointer_at = ctypes.c_void_p.from_address
_int_at = ctypes.c_int.from_address

# CUpti_ResourceCallbackData {context, resourceHandle, resourceDescriptor} and, behind the
# descriptor, CUpti_GraphData {graph, originalGraph, node, ...}: eight bytes each.
DESCRIPTOR_OFFSET = 16
NODE_OFFSET = 16

# The calls that add one node each when they are captured.
_LAUNCH = re.compile(
    r"^cu(da)?(LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async|LaunchHostFunc)"
)


class CuptiUnavailable(RuntimeError):
    """CUPTI could not be loaded or used; the text gives the reason."""


class CuptiBusy(CuptiUnavailable):
    """Another tool in this process has subscribed to CUPTI."""


def library_path() -> str | None:
    """The libcupti that this process has loaded, else the one of the nvidia wheels."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        loaded = re.search(r"(/\S*libcupti\.so\S*)", maps.read_text())
        if loaded:
            return loaded.group(1)
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("**/libcupti.so.*")):
            return str(path)
    return None


@cache
def library() -> ctypes.CDLL:
    """Raises CuptiUnavailable."""
    path = library_path()
    if path is None:
        raise CuptiUnavailable("libcupti is not loaded by torch and not in the nvidia wheels")
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise CuptiUnavailable(f"{path}: {error}") from error


def call(name: str, *arguments: Any) -> None:
    """A call of CUPTI. Raises CuptiUnavailable, and CuptiBusy where another tool records."""
    code = getattr(library(), name)(*arguments)
    if code == _ERROR_MULTIPLE_SUBSCRIBERS:
        raise CuptiBusy("another tool in this process has subscribed to CUPTI")
    if code != 0:
        raise CuptiUnavailable(f"{name} returned {code}")


@contextlib.contextmanager
def _subscribed(callback: Callable[..., None]) -> Iterator[ctypes.c_void_p]:
    cupti = library()
    subscriber = ctypes.c_void_p()
    function = _Callback(callback)
    call("cuptiSubscribe", ctypes.byref(subscriber), function, None)
    try:
        yield subscriber
    finally:
        cupti.cuptiUnsubscribe(subscriber)
        del function


@cache
def _launch_callbacks() -> tuple[tuple[int, int], ...]:
    """(domain, callback id) of every API call that launches, copies or fills."""
    cupti = library()
    callbacks: list[tuple[int, int]] = []
    name = ctypes.c_char_p()
    for domain in (_DRIVER_API, _RUNTIME_API):
        for callback_id in range(1, 2000):
            if cupti.cuptiGetCallbackName(domain, callback_id, ctypes.byref(name)) != 0:
                break
            text = (name.value or b"").decode()
            if _LAUNCH.match(text):
                callbacks.append((domain, callback_id))
    return tuple(callbacks)


NodeCallback = Callable[[Any, int, int, int], None]
"""The callback type: (user data, domain, callback id, address of the callback data)."""


@contextlib.contextmanager
def watch_nodes(callback: NodeCallback) -> Iterator[None]:
    """Call ``callback`` for every graph node, on the thread that added it.

    CUPTI calls it directly, once per node, inside the launch that added the node. An exception in
    it cannot cross the C frames above. The node is at ``NODE_OFFSET`` of the descriptor, whose
    pointer is at ``DESCRIPTOR_OFFSET`` of the callback data.
    """
    with _subscribed(callback) as subscriber:
        call("cuptiEnableCallback", 1, subscriber, _RESOURCE, _GRAPHNODE_CREATED)
        yield


@contextlib.contextmanager
def watch_launches(launched: Callable[[], None]) -> Iterator[None]:
    """Call ``launched()`` at the start of every launch, copy and fill, on the calling thread.

    The runtime calls the driver: only the outermost of nested calls counts.
    """
    depths: dict[int, int] = {}

    def callback(_user: Any, _domain: int, _id: int, data: int) -> None:
        thread = get_ident()
        depth = depths.get(thread, 0)
        if _int_at(data).value == _API_ENTER:
            depths[thread] = depth + 1
            if depth == 0:
                launched()
        else:
            depths[thread] = depth - 1

    with _subscribed(callback) as subscriber:
        for domain, callback_id in _launch_callbacks():
            call("cuptiEnableCallback", 1, subscriber, domain, callback_id)
        yield


def held() -> bool:
    """Whether another tool has subscribed in this process: Nsight Compute or Systems, or a profiler
    that the user's code started."""
    try:
        with watch_nodes(lambda *_: None):
            return False
    except CuptiBusy:
        return True
    except CuptiUnavailable:
        return False
