"""Once this is imported, ``check SCRIPT`` on the simulated device sees what it sees on a GPU:
captured code is called no second time, because a process with a GPU cannot be forked, and a
backward runs on a thread of autograd's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cgtool.devices.simulated import cudagraph, later_calls, second_call
from cgtool.devices.simulated.script_device import ScriptDevice
from tests.detectors.autograd_threads import backwards_on_threads


def cannot_fork() -> bool:
    return False


for module in (later_calls, second_call):
    module.can_fork = cannot_fork

original = cudagraph.redirected


@contextlib.contextmanager
def redirected(device: ScriptDevice) -> Iterator[None]:
    with backwards_on_threads(device), original(device):
        yield


cudagraph.redirected = redirected
