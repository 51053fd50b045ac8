"""Memory that an iteration reads but did not allocate, and which of it is freed at the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from cgtool.detectors.frozen_host_state import METADATA_ADDRESS_CHANGED, PARAMETER_REBOUND
from cgtool.detectors.reporting import at_call
from cgtool.devices.device import Device, VerifyTarget
from cgtool.findings import code
from cgtool.jobs.verify.runner import autocast_caches, observed_iteration
from cgtool.jobs.verify.state import state_of
from cgtool.model.capture import Frames
from cgtool.model.finding import Finding
from cgtool.observe.effects import UNINITIALIZED, effect_of, written_by
from cgtool.observe.frames import call_user
from cgtool.observe.ops import OpCall, OpRecorder, Record
from cgtool.observe.tensors import has_memory, on_host, strided, tensors_in
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import storage_address
from cgtool.torch_compat.storages import StorageRef

AUTOCAST_WEIGHT_CACHE = code("autocast-weight-cache")
INPUT_FREED_BEFORE_REPLAY = code("input-freed-before-replay")

_REBOUND = (METADATA_ADDRESS_CHANGED, PARAMETER_REBOUND)


def _held() -> dict[int, StorageRef]:
    """Storages of all tensors that are alive in Python, by identity, held weakly."""
    storages = {}
    for tensor in gc.get_objects():
        # Wrappers of functorch are plain tensors, too, and have no storage.
        if has_memory(tensor):
            storage = StorageRef(tensor)
            storages[storage.key] = storage
    return storages


@dataclass
class Outside:
    """Device memory allocated before the iteration that one of its ops read."""

    call: OpCall
    storage: StorageRef
    tensor: str
    """``float32[4, 8]``."""


def _is_of(finding: Finding, frames: Frames) -> bool:
    """Whether a finding is at a line, or names it as one that reads."""
    words = " ".join(finding.evidence).replace(",", "").split()
    return finding.frames[:1] == frames or any(frame.short in words for frame in frames)


class LivenessRecorder(OpRecorder):
    """Tracks storages that the iteration reads but did not allocate; keeps none of them alive."""

    def __init__(self, roots: Any, annotations: Any, device: Device) -> None:
        super().__init__(roots, annotations)
        self.device = device
        self.outside: dict[int, Outside] = {}
        self._allocated: dict[int, StorageRef] = {}
        self._before = None if autocast_caches() else _held()
        """Storages of the tensors that Python holds, which are not casts in autocast's cache."""
        self.uses_empty = False
        self._changed_by_host: set[int] = set()
        self._used: set[int] = set()
        """Storages on the host that the code reads, or that the device writes."""

    def execute(self, call: OpCall, func: Any, args: Args, kwargs: Kwargs) -> Any:
        # Held until the op has run, so that no new storage gets the identity of one of them.
        arguments = {storage_address(tensor): tensor for tensor in strided((args, kwargs))}
        output = self.run(func, args, kwargs)
        self.uses_empty |= call.name.startswith(UNINITIALIZED)
        for tensor in strided(output):
            if storage_address(tensor) not in arguments:
                # The reference keeps the identity from being reused.
                storage = StorageRef(tensor)
                self._allocated[storage.key] = storage
        is_host_work = self.device.is_host_work(list(tensors_in(output)) or args)
        self._note_host(func, args, kwargs, is_host_work)
        if is_host_work:
            return output
        for tensor in strided((args, kwargs)):
            storage = StorageRef(tensor)
            key = storage.key
            if key in self._allocated or key in self.outside or not storage.bytes:
                continue
            if self._before is not None and key not in self._before:
                # Created in C++ for this op only, unseen by recorders (the index of x[[0, 2]]).
                continue
            described = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            self.outside[key] = Outside(call, storage, described)
        return output

    def _note_host(self, func: Any, args: Args, kwargs: Kwargs, is_host_work: bool) -> None:
        if effect_of(func).view:
            return
        written = set(map(id, written_by(func, args, kwargs)))
        for tensor in strided((args, kwargs)):
            if on_host(tensor):
                is_changed = is_host_work and id(tensor) in written
                (self._changed_by_host if is_changed else self._used).add(storage_address(tensor))

    def __enter__(self) -> LivenessRecorder:
        super().__enter__()
        self._patches = Patches()
        for name in ("tolist", "numpy", "__array__"):
            self._patches.stand_in(torch.Tensor, name, self._note_read)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._patches.close()
        super().__exit__(*exc)

    def _note_read(self, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """A tensor is read on the host without an op."""
        if has_memory(tensor) and on_host(tensor):
            self._used.add(storage_address(tensor))
        return call_user(original, tensor, *args, **kwargs)

    def counts(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor on the host is changed there, and nothing reads it: no more than a count
        in Python, which a replay does not change either."""
        return on_host(tensor) and storage_address(tensor) in self._changed_by_host - self._used

    def freed_inputs(self) -> list[Outside]:
        """The reads whose memory was freed since."""
        gc.collect()
        return [read for read in self.outside.values() if read.storage.expired()]


class Liveness:
    """One iteration after warm-up, before verification holds a tensor of the user's."""

    def __init__(self, target: VerifyTarget) -> None:
        self._caches = autocast_caches()
        incoming: list[torch.Tensor] = []
        make_recorder = partial(LivenessRecorder, device=target.device)
        # A capture would read the casts that warm-up left in autocast's cache. The results are
        # freed before the recorder looks at what is gone.
        recorder = observed_iteration(target, make_recorder, keep_casts=True, hold=incoming)[1]
        if self._caches:
            torch.clear_autocast_cache()
        self.record: Record = recorder.record
        self.freed_inputs: list[Outside] = recorder.freed_inputs()
        self.uses_empty = recorder.uses_empty
        self.counts = frozenset(
            name
            for name, tensor in state_of(target.workload).items()
            if has_memory(tensor) and recorder.counts(tensor)
        )
        """State that is changed on the host, and that nothing reads."""

    def joined(self, known: list[Finding], findings: list[Finding]) -> Iterator[Finding]:
        """``findings``, and the memory that was freed. Where ``known`` reports of the same line
        that a tensor was replaced, both have one cause and are reported once."""
        freed_inputs = list(self.findings())
        freed = {finding.frames[:1] for finding in freed_inputs}
        rebound = {
            frames: finding
            for finding in reversed(known)
            if finding.code in _REBOUND
            for frames in freed
            if _is_of(finding, frames)
        }
        joined = {finding.frames[:1]: finding for finding in rebound.values()}
        for finding in findings:
            if finding.code not in _REBOUND or finding.frames[:1] not in joined:
                yield finding
        for finding in joined.values():
            evidence = (*finding.evidence, "the first one is freed when the call returns")
            yield replace(finding, evidence=evidence)
        yield from (finding for finding in freed_inputs if finding.frames[:1] not in rebound)

    def findings(self) -> Iterator[Finding]:
        """Memory that the iteration read but did not allocate, and that was freed at its end."""
        for read in self.freed_inputs:
            if self._caches:
                finding = Finding(
                    AUTOCAST_WEIGHT_CACHE,
                    f"{read.call.name} reads a cast from autocast's cache: a replay reads it even "
                    "after the weight has changed and the cache was cleared",
                    evidence=(f"the cast is {read.tensor}",),
                )
            else:
                finding = Finding(
                    INPUT_FREED_BEFORE_REPLAY,
                    f"{read.call.name} reads {read.tensor} from before the call, which is freed "
                    "when the call returns: a replay reads freed memory",
                )
            yield at_call(finding, read.call, self.record)
