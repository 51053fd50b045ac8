"""Findings while code runs: raised at the first one, or collected so that one run shows all."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cgtool.model.capture import Frame
from cgtool.model.failure import EXIT_USER_CODE, CgtoolError, Failure
from cgtool.model.finding import Finding
from cgtool.observe.frames import columns_of, frames_of
from cgtool.observe.ops import OpCall, Record


class Findings:
    """What was found so far, each place of each code once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, tuple[Frame, ...], str | None], Finding] = {}
        self.phase: str | None = None
        """Of what runs now; taken by findings that name none."""

    def add(self, finding: Finding) -> None:
        if finding.phase is None:
            finding = msgspec.structs.replace(finding, phase=self.phase)
        # One line of a loop or of a library is one finding, however often it runs.
        key = finding.code, finding.frames, None if finding.frames else finding.reason
        known = self._found.get(key)
        if known is not None:
            finding = msgspec.structs.replace(known, times=known.times + finding.times)
        self._found[key] = finding

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def all(self) -> tuple[Finding, ...]:
        """In the order in which they were met."""
        return tuple(self._found.values())


def at_call(finding: Finding, call: OpCall, record: Record) -> Finding:
    """The finding with the place of an op: its line, its module, and in backward both lines."""
    forward = record.forward_of(call)
    module = call.module or (forward.module if forward is not None else None)
    return msgspec.structs.replace(
        finding,
        frames=frames_of(call.chain) or finding.frames,
        columns=columns_of(call.chain) or finding.columns,
        module=module[0] if module is not None else None,
        forward=frames_of(forward.chain) if forward is not None else (),
    )


def refusal(finding: Finding, *, why: str, fix: str | None = None) -> CgtoolError:
    """The error that ends a capture because of a finding."""
    return CgtoolError(
        Failure(
            what=finding.reason,
            exit_code=EXIT_USER_CODE,
            frames=finding.frames,
            why=why,
            fix=finding.fix or fix,
            phase=finding.phase,
            findings=(finding,),
        )
    )
