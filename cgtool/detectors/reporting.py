"""How detectors report: findings that are collected, or that end the capture as CUDA would.

Rules of an entry report to a ``CapturedRegion``; a ``Detector`` of a script reports itself.
"""

from __future__ import annotations

import contextlib
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from cgtool.findings import page
from cgtool.model.capture import Frames
from cgtool.model.failure import EXIT_USER_CODE, CgtoolError, Failure
from cgtool.model.finding import NOTE, Code, Finding
from cgtool.observe.frames import columns_of, frames_of, here
from cgtool.observe.ops import OpCall, Record
from cgtool.observe.refused_backward import note_refusal
from cgtool.observe.script import events
from cgtool.observe.script.script import ObservedScript
from cgtool.observe.script.state import WatchedGraph
from cgtool.observe.tensors import leaves_behind, listed_tensors
from cgtool.observe.waiting import callers_of_backward, chain_or_waiting
from cgtool.torch_compat.private import running_autograd_node

_HOST_WAITS = (
    "the host would wait for a stream that is capturing, which CUDA refuses "
    "(cudaErrorStreamCaptureUnsupported, 900)"
)
COPIES = (
    "it copies between the device and pageable host memory, which CUDA refuses "
    "(cudaErrorStreamCaptureUnsupported, 900); PyTorch may raise 'Cannot copy between CPU and CUDA "
    "tensors during CUDA graph capture' instead"
)


class FindingLog:
    """The findings of a run, each code once for each line."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, Frames, str | None], Finding] = {}
        self.phase: str | None = None
        """The phase of findings that name none."""
        self.moment: Callable[[], object] = object
        """When a finding is added: what several tensors show at one replay happened once."""
        self._moments: dict[tuple[str, Frames, str | None], object] = {}

    def add(self, finding: Finding) -> None:
        """Add a finding, or count it where the same line has reported the code already."""
        if finding.phase is None:
            finding = replace(finding, phase=self.phase)
        key = finding.code, finding.frames, None if finding.frames else finding.reason
        known = self._findings.get(key)
        moment = self.moment()
        if known is not None:
            is_new = moment != self._moments[key]
            times = known.times + finding.times * is_new
            finding = replace(with_names_of(known, finding), times=times)
        self._findings[key], self._moments[key] = finding, moment

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add findings in order."""
        for finding in findings:
            self.add(finding)

    def drop(self, code: Code, frames: Frames | None = None) -> None:
        """Take back what was reported at a line, or at any line."""
        for key in [key for key in self._findings if key[0] == code]:
            if frames is None or key[1:] == (frames, None):
                del self._findings[key]

    def demote(self, code: Code) -> None:
        """Make notes of all findings with a code, which another finding explains."""
        for key, finding in self._findings.items():
            if finding.code == code:
                self._findings[key] = replace(finding, severity=NOTE)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings.values())

    def __len__(self) -> int:
        return len(self._findings)

    def all(self) -> tuple[Finding, ...]:
        """In the order in which they were reported."""
        return tuple(self._findings.values())


def with_names_of(finding: Finding, other: Finding) -> Finding:
    """The finding, with a note of what another one of its code and line says of something else."""
    text = " ".join((finding.reason, *finding.evidence))
    names = [name for name in dict.fromkeys(_NAMES.findall(other.reason)) if name not in text]
    if not names:
        return finding
    notes = [note for note in finding.evidence if note.startswith(_ALSO)]
    names = [*_NAMES.findall("".join(notes)), *names]
    if len(names) > _MOST_NAMES:
        names = [*names[:_MOST_NAMES], "others"]
    *first, last = names
    also = f"{_ALSO}{', '.join(first)} and {last}" if first else _ALSO + last
    evidence = [note for note in finding.evidence if note not in notes]
    return replace(finding, evidence=(*evidence, also))


_NAMES = re.compile("`[^`]+`")
_ALSO = "the same is true of "
_MOST_NAMES = 4


def at_call(finding: Finding, call: OpCall, record: Record) -> Finding:
    """The finding at the line and module of an op; in backward also at the op's forward line, which
    is its only one where no code of the user's runs backward."""
    forward = record.forward_of(call)
    module = call.module or (forward.module if forward is not None else None)
    forward_chain = forward.chain if forward is not None else ()
    chain = call.chain or forward_chain
    return replace(
        finding,
        frames=frames_of(chain) or finding.frames,
        columns=columns_of(chain) or finding.columns,
        module=module[0] if module is not None else None,
        forward=frames_of(forward_chain) if call.chain else (),
    )


def where_it_was_made(finding: Finding, call: OpCall, record: Record) -> Finding:
    """``at_call``, in backward at the forward's line if autograd makes the call itself: that line
    is the one to change, and not the one that runs the backward. The reads of anomaly mode follow
    from no line of the forward."""
    forward, caller = record.forward_of(call), callers_of_backward()
    is_own = bool(call.chain) and call.chain == caller
    in_anomaly_mode = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    if forward is None or not forward.chain or not is_own or in_anomaly_mode:
        return at_call(finding, call, record)
    line = frames_of(caller)[0]
    where = f"in the backward that {line.short} runs"
    return at_call(replace(finding, evidence=(*finding.evidence, where)), forward, record)


class _OfThread(threading.local):
    """The op and the function that a thread is running, and what is known of them."""

    call: OpCall | None = None
    record: Record | None = None
    on_host = False
    function: Any = None
    fills_mask = False
    is_refused = False
    is_compiled = False


def _of_thread(name: str) -> Any:
    """An attribute of a region that each thread has for itself."""
    of = operator.attrgetter(f"_of_thread.{name}")
    return property(of, lambda region, value: setattr(region._of_thread, name, value))


class CapturedRegion:
    """The running code, which is being captured or runs as if it were.

    Rules read its state and report to it.
    """

    call: OpCall | None = _of_thread("call")
    """The op that is running."""
    record: Record | None = _of_thread("record")
    """The record that ``call`` belongs to."""
    on_host: bool = _of_thread("on_host")
    """The running function has only tensors on the host: no work for the device."""
    function: Any = _of_thread("function")
    """The outermost torch function that is running."""
    fills_mask: bool = _of_thread("fills_mask")
    """The running function is ``x[mask] = number``, which a GPU executes as a masked fill."""
    is_refused: bool = _of_thread("is_refused")
    """The running function is refused: what it calls is refused for no other reason."""
    is_compiled: bool = _of_thread("is_compiled")
    """A compiler would have compiled the running code."""

    def __init__(self) -> None:
        self.findings = FindingLog()
        self.collecting = False
        """Continue after a finding, so that one run collects all; else the first one raises."""
        self.phase = "capture"
        """``capture forward``."""
        self.thread = threading.get_ident()
        """The thread that captures; it waits for one without a line of its own."""
        self.mode = "global"
        """The ``capture_error_mode``."""
        self._of_thread = _OfThread()
        self.capturing_queries: list[Frames] = []
        """Where the code queried whether a stream is capturing, and the result was True."""
        self.refusal: CgtoolError | None = None
        """The first refusal of this capture: CUDA invalidates it although the code catches the
        error."""
        self.without_gradient: set[int] = set()
        """``id`` of the inputs and parameters without a gradient, but for those whose value a
        refused call gets."""
        self.refusals: list[Code] = []
        """Codes that were reported as ending the capture."""

    @property
    def capturing(self) -> bool:
        """Whether a capture is in progress."""
        return False

    @property
    def in_other_thread(self) -> bool:
        """Whether this thread is not the one that captures, nor works for its backward."""
        return threading.get_ident() != self.thread and running_autograd_node() is None

    def answer_capturing(self) -> None:
        """Record that the user's code queries whether a stream is capturing; the result is True."""
        self.capturing_queries.append(here(2))

    def note(
        self, code: Code, reason: str, evidence: tuple[str, ...] = (), fix: str | None = None
    ) -> None:
        """Collect a finding that does not end the capture; nothing outside a capture."""
        if self.collecting and self.capturing:
            finding = Finding(code, reason, phase=self.phase, evidence=evidence, fix=fix)
            self.findings.add(self.placed(finding))

    def report(
        self,
        code: Code,
        reason: str,
        frames: Frames = (),
        *,
        why: str = "",
        fix: str | None = None,
        phase: str | None = None,
    ) -> None:
        """Collect a finding that ends the capture, or ``fail`` with it.

        Without ``frames`` it is at the op that is running, else at the line that is.
        """
        self.refusals.append(code)
        finding = self.placed(
            Finding(
                code,
                reason,
                frames,
                phase=phase or self.phase,
                fix=fix,
                evidence=(why,) if why else (),
            )
        )
        if self.collecting:
            self.findings.add(finding)
        else:
            self.fail(finding, why)

    def fail(self, finding: Finding, why: str) -> None:
        """End the capture: raises CgtoolError (exit 4)."""
        explanation = page(finding.code)
        error = CgtoolError(
            Failure(
                message=finding.reason,
                exit_code=EXIT_USER_CODE,
                frames=finding.frames,
                why=why,
                fix=finding.fix or (explanation.head.fix if explanation else None),
                phase=finding.phase,
                findings=(finding,),
            )
        )
        self.refusal = self.refusal or error
        if running_autograd_node() is not None and torch.is_anomaly_enabled():
            note_refusal(error)
        raise error

    def require_valid(self) -> None:
        """At the end of a capture: raises CgtoolError if a call was refused during it."""
        if self.refusal is not None:
            raise self.refusal

    def refuse(
        self,
        code: Code,
        call: str,
        fix: str | None = None,
        *,
        why: str = _HOST_WAITS,
        in_all_modes: bool = False,
    ) -> None:
        """Report a call that CUDA does not permit during capture; nothing outside a capture, and
        inside a function that is refused.

        ``call`` is the subject of the sentence: "`Tensor.item()` is not permitted ...". In other
        threads, modes other than ``global`` permit all but a few calls (``in_all_modes``).
        """
        is_permitted = self.in_other_thread and self.mode != "global" and not in_all_modes
        if self.capturing and not self.is_refused and not is_permitted:
            reason = f"{call} is not permitted when a stream is capturing"
            self.report(code, reason, why=why, fix=fix)

    def note_refused(self, args: Sequence[Any]) -> None:
        """A call with these arguments was refused: what it returns to the host has no gradient."""
        if self.without_gradient:
            self.without_gradient -= leaves_behind(listed_tensors(args))

    def placed(self, finding: Finding) -> Finding:
        """The finding at its frames, else at the op or the line that is running."""
        if finding.frames:
            return finding
        if self.call is not None and self.record is not None:
            return where_it_was_made(finding, self.call, self.record)
        chain = chain_or_waiting(sys._getframe(1), self.thread)
        return replace(finding, frames=frames_of(chain), columns=columns_of(chain))


_HANDLERS = {
    f"on_{re.sub('(?<=[a-z])(?=[A-Z])', '_', name).lower()}": event
    for name, event in vars(events).items()
    if isinstance(event, type)
}


class Detector:
    """Subscribes its methods that are called after an event (``on_replay_begins`` is called with
    each ``events.ReplayBegins``), and reports findings."""

    phase = "script"
    """The phase of findings that name none."""

    def __init_subclass__(cls) -> None:
        unknown = [name for name in vars(cls) if name.startswith("on_") and name not in _HANDLERS]
        assert not unknown, f"{cls.__name__} has methods for unknown events: {unknown}"

    def __init__(self, script: ObservedScript, findings: FindingLog) -> None:
        self.script = script
        self.findings = findings
        findings.moment = lambda: script.published
        for name, event in _HANDLERS.items():
            if hasattr(self, name):
                script.subscribe(event, getattr(self, name))
        self.start()

    def start(self) -> None:
        """Set up the state of the detector."""

    def report(
        self,
        code: Code,
        reason: str,
        frames: Frames | None = None,
        *,
        phase: str | None = None,
        fix: str | None = None,
        evidence: tuple[str, ...] = (),
        severity: str | None = None,
        module: str | None = None,
        graphs: Sequence[WatchedGraph] = (),
    ) -> None:
        """Add a finding; without ``frames`` it is at the line of the script that runs now.
        ``graphs``: those that ``reason`` names. If the script has several, the finding says where
        each of them was captured."""
        chain = self.script.chain() if frames is None else ()
        if len(self.script.graphs) > 1:
            evidence += tuple(map(self._captured_at, graphs))
        self.findings.add(
            Finding(
                code,
                reason,
                frames_of(chain) if frames is None else frames,
                columns=columns_of(chain),
                module=module,
                phase=phase or self.phase,
                fix=fix,
                evidence=evidence,
                severity=severity,
            )
        )

    def _captured_at(self, graph: WatchedGraph) -> str:
        """The line that captured a graph; of several that it captured, with the call that tells
        them apart."""
        frames = graph.frames
        others = [each.frames for each in self.script.graphs if each.frames[:1] == frames[:1]]
        at = frames[0].short if frames else "a line that is unknown"
        for depth, frame in enumerate(frames):
            if any(other[depth : depth + 1] != (frame,) for other in others):
                at += f", called from {frame.short}"
                break
        return f"{graph.name} was captured at {at}"


_REPORTED = "_cgtool_reported"


def is_reported(error: BaseException) -> bool:
    """True if the finding behind an exception is reported already."""
    return bool(getattr(error, _REPORTED, False))


def mark_reported(error: BaseException) -> None:
    """Mark the finding behind the exception as reported, so that nothing explains it again."""
    with contextlib.suppress(AttributeError, TypeError):
        setattr(error, _REPORTED, True)
