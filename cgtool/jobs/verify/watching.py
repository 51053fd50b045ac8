"""Eager iterations observed op by op: the outside memory that they read, the results of every op,
and the effect of uninitialised memory (``torch.empty``)."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cgtool.detectors.reporting import at_call
from cgtool.devices.device import VerifyTarget
from cgtool.devices.op_results import strided
from cgtool.findings.registry import code
from cgtool.jobs.verify.compare import SLACK, difference
from cgtool.jobs.verify.runs import (
    Results,
    Trial,
    TrialRunner,
    autocast_caches,
    eager_iteration,
    fill_sentinel,
)
from cgtool.jobs.verify.state import raw
from cgtool.model.finding import Finding
from cgtool.observe.annotations import watch as watch_annotations
from cgtool.observe.effects import UNINITIALISED
from cgtool.observe.ops import OpCall, OpRecorder
from cgtool.observe.storage import tensors_in
from cgtool.program.phases import roots_of
from cgtool.torch_compat.private import storage_key


def _held() -> dict[int, StorageWeakRef]:
    """Storages of all tensors that are alive in Python, by identity, held weakly."""
    storages = {}
    for tensor in gc.get_objects():
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            storages[storage_key(storage)] = StorageWeakRef(storage)
    return storages


@dataclass
class Outside:
    """Device memory from before the iteration that an op of it read."""

    call: OpCall
    reference: StorageWeakRef
    shape: tuple[int, ...]
    dtype: str


class LivenessRecorder(OpRecorder):
    """Follows storages from before the iteration that it reads, and holds none of them."""

    def __init__(self, target: VerifyTarget, annotations: Any) -> None:
        super().__init__(roots_of(target.workload), annotations)
        self.target = target
        self.outside: dict[int, Outside] = {}
        self._made: dict[int, StorageWeakRef] = {}
        self._before = None if autocast_caches() else _held()
        """Storages of the tensors that Python holds, which are not casts in autocast's cache."""
        self.uses_empty = False

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = [tensor.untyped_storage() for tensor in strided((args, kwargs))]
        known = {storage_key(storage) for storage in given}
        output = self.run(func, args, kwargs)
        self.uses_empty |= call.name.startswith(UNINITIALISED)
        for tensor in strided(output):
            storage = tensor.untyped_storage()
            if storage_key(storage) not in known:
                # The weak reference keeps the identity from being reused.
                self._made[storage_key(storage)] = StorageWeakRef(storage)
        if self.target.device.is_host_work(list(tensors_in(output)) or args):
            return output
        for tensor in strided((args, kwargs)):
            storage = tensor.untyped_storage()
            key = storage_key(storage)
            if key in self._made or key in self.outside or not storage.nbytes():
                continue
            if self._before is not None and key not in self._before:
                # Made in C++ for this op only, unseen by recorders (the index tensor of x[[0, 2]]).
                continue
            self.outside[key] = Outside(
                call,
                StorageWeakRef(storage),
                tuple(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
            )
        return output

    def freed_inputs(self) -> list[Outside]:
        """What was freed since."""
        gc.collect()
        return [read for read in self.outside.values() if read.reference.expired()]


class SpoilRecorder(OpRecorder):
    """Fills the memory that ``torch.empty`` returns with a sentinel or with zeros, so that results
    that depend on it change."""

    def __init__(self, target: VerifyTarget, annotations: Any, only: int | None = None) -> None:
        """``only``: the index of the one call that gets the sentinel; None: all of them."""
        super().__init__(roots_of(target.workload), annotations)
        self.only = only
        self.calls: list[OpCall] = []

    def execute(
        self, call: OpCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = self.run(func, args, kwargs)
        if call.name.startswith(UNINITIALISED):
            for tensor in strided(output):
                if self.only is None or self.only == len(self.calls):
                    fill_sentinel(tensor)
                else:
                    tensor.detach().zero_()
            self.calls.append(call)
        return output


@contextlib.contextmanager
def recording(target: VerifyTarget) -> Iterator[Any]:
    """The user's ranges, for a recorder."""
    with watch_annotations(target.options.annotations) as annotations:
        yield annotations


STALE_ACCUMULATOR_OR_UNINITIALISED = code("stale-accumulator-or-uninitialised")

_MOST = 32
"""Calls that are tested one by one."""


def _run(
    target: VerifyTarget, runner: TrialRunner, trial: Trial, only: int | None
) -> tuple[Results, SpoilRecorder]:
    runner.begin_eager(trial)
    with recording(target) as annotations:
        recorder = SpoilRecorder(target, annotations, only)
        results = eager_iteration(target, recorder)
    target.device.synchronize()
    with raw():
        return {key: tensor.detach().clone() for key, tensor in results.items()}, recorder


def _largest_difference(first: Results, second: Results) -> float:
    """The largest difference; infinite where only one has a NaN."""
    worst = 0.0
    for key in first.keys() & second.keys():
        distance = difference(first[key], second[key])
        if distance.largest is None:
            return math.inf
        worst = max(worst, distance.largest)
    return worst


def reads_uninitialised(target: VerifyTarget, runner: TrialRunner, trial: Trial) -> list[Finding]:
    """A finding for the first uninitialised allocation that results depend on, if any.

    Eager gets new memory from the allocator each time, often zeros; a graph gets the memory of its
    last replay. So eager runs again with that memory filled: results that change depend on it.
    """
    clean, recorder = _run(target, runner, trial, -1)
    if not recorder.calls:
        return []
    # Between two runs with zeros, only the noise of the ops differs.
    noise = SLACK * _largest_difference(clean, _run(target, runner, trial, -1)[0])
    if (
        not math.isfinite(noise)
        or _largest_difference(clean, _run(target, runner, trial, None)[0]) <= noise
    ):
        return []
    for number, call in enumerate(recorder.calls[:_MOST]):
        if _largest_difference(clean, _run(target, runner, trial, number)[0]) > noise:
            finding = Finding(
                STALE_ACCUMULATOR_OR_UNINITIALISED,
                f"results depend on the uninitialised memory that {call.name} returns here: in a "
                "graph, it has the values of the previous replay",
            )
            return [at_call(finding, call, recorder.record)]
    return []
