"""One eager iteration as a stream of ops, and what PyTorch's own schedulers and generators do in
it."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cgtool.model.capture import Frames
from cgtool.observe.annotations import Annotations
from cgtool.observe.frames import (
    Chain,
    call_user,
    chain_of,
    frames_of,
    is_internal,
    sites_until,
)
from cgtool.observe.ops import Record
from cgtool.observe.tensors import has_memory, tensors_in
from cgtool.recapture.ops import KeptOpRecorder, Op
from cgtool.torch_compat.patches import set_profile, without_collector
from cgtool.torch_compat.private import storage_address
from cgtool.torch_compat.storages import StorageRef


@dataclass
class Iteration:
    """The ops and side effects of one eager iteration."""

    ops: list[Op]
    record: Record
    storages: dict[int, StorageRef]
    """All storages of arguments and results of ops, by key."""
    filled: set[int]
    """Storages on the host into which the device copies: a replay fills them too."""
    emptied: set[int] = field(default_factory=set)
    """Storages whose memory it gave back: the next iteration takes other memory for them."""
    returned: set[int] = field(default_factory=set)
    """Storages of what its outermost functions returned."""
    returns: bool = False
    """Whether what they returned is known."""
    seeding: dict[int, Frames] = field(default_factory=dict)
    """By id: the generators of the device whose seed or state the code sets, and where."""
    outer: Chain = ()
    """The frames around the iteration, of a program that has called cgtool."""

    def outlived(self, storage: int) -> bool:
        """Whether a storage is still alive after the iteration."""
        return not self.storages[storage].expired()

    def in_order(self) -> list[Op]:
        """The ops on the device: those of this thread as they ran, then those of others, which run
        in any order, by line, and of one line by what they read."""
        ops = [op for op in self.ops if not op.host]
        here = threading.get_ident()
        others = [op for op in ops if op.call.thread != here]
        others.sort(key=lambda op: (*op.site, op.call.module or (), str(op.outside), op.sizes))
        return [*(op for op in ops if op.call.thread == here), *others]


class _Profile:
    """Notes the generators that the code seeds, and what its outermost functions return."""

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "return":
            if not is_internal(code) and _is_called_by_us(frame):
                self.iteration.returns = True
                tensors = filter(has_memory, tensors_in(argument))
                self.iteration.returned |= set(map(storage_address, tensors))
        elif event == "c_call":
            owner = getattr(argument, "__self__", None)
            if (
                isinstance(owner, type(torch.default_generator))
                and owner.device.type != "cpu"
                and argument.__name__ in _SEEDS
                and not is_internal(code)
            ):
                self.iteration.seeding.setdefault(id(owner), frames_of(chain_of(frame)))


_SEEDS = frozenset(("manual_seed", "seed", "set_state", "set_offset", "graphsafe_set_state"))
"""Methods of ``torch.Generator``."""


def _is_called_by_us(frame: types.FrameType) -> bool:
    caller = frame.f_back
    while caller is not None and is_internal(caller.f_code):
        if caller.f_code is call_user.__code__:
            return True
        caller = caller.f_back
    return False


Recorder = Callable[[Any, Annotations, set[int]], KeptOpRecorder]


def observe(
    run: Callable[[], Any],
    roots: Any,
    annotations: Annotations,
    inputs: set[int],
    make_recorder: Recorder = KeptOpRecorder,
    *,
    generation: int = 2,
) -> Iteration:
    """Run one eager iteration; ``inputs`` are keys of the storages of the callables' arguments.

    Garbage of up to ``generation`` is collected before: what one run leaves is in the first two.
    """
    recorder = make_recorder(roots, annotations, inputs)
    iteration = Iteration(recorder.ops, recorder.record, recorder.storages, recorder.filled)
    iteration.outer = tuple(sites_until(sys._getframe(1), None)[0])
    # As the end of autocast does: casts that it keeps would be ops of the first iteration only.
    torch.clear_autocast_cache()
    profile, before = _Profile(iteration), sys.getprofile()
    # Callbacks and finalizers would look like the user's code. A profile sees one thread: autograd
    # has another one for each GPU, on which it runs the user's backward functions and hooks.
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with without_collector(generation), one_thread, recorder:
        sys.setprofile(profile)
        try:
            run()
        finally:
            set_profile(before)
    iteration.emptied = {key for key, each in recorder.storages.items() if each.is_emptied()}
    return iteration
