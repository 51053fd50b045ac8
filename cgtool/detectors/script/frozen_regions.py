"""Captured code of a script that does something else as its replays begin: what running it again
has shown, as findings."""

from __future__ import annotations

import textwrap

from msgspec.structs import replace

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.detectors.capturing_paths import CODE_BRANCHES_ON_CAPTURING
from cgtool.detectors.frozen_host_state import (
    CONTROL_FLOW_FROZEN,
    CPU_WORK_IN_REGION,
    METADATA_ADDRESS_CHANGED,
    PYTHON_SCALAR_FROZEN,
    frames_of_branch,
)
from cgtool.detectors.reporting import Detector
from cgtool.model.capture import Frames
from cgtool.model.finding import ERROR, Code, Finding
from cgtool.observe.frames import Chain, Site, frame_of, frames_of, line_of
from cgtool.observe.ops import OpCall
from cgtool.observe.script import events
from cgtool.observe.script.blocks import RUNS_AGAIN
from cgtool.observe.source import deciding_line
from cgtool.recapture.regions import Asked, Regions, Rerun

_CODES: dict[str, Code] = {
    "branch": CONTROL_FLOW_FROZEN,
    "list": CONTROL_FLOW_FROZEN,
    "number": PYTHON_SCALAR_FROZEN,
    "values": CPU_WORK_IN_REGION,
    "tensor": METADATA_ADDRESS_CHANGED,
}
"""By the kind of a difference."""
_FIX_OF_BRANCH = (
    "capture again when what decides has changed, capture one graph for each branch, or select on "
    "the device"
)
_FIX_OF_FIRST = (
    "if only its first call differs, run the code once, as a warm-up, before the capture; "
    f"else {_FIX_OF_BRANCH}"
)
_SHOWN = 3


class FrozenRegions(Detector):
    """Runs captured code again, and reports it when the script has ended."""

    phase = "replay"

    def start(self) -> None:
        self._regions = Regions(self.script)

    def on_script_ended(self, _event: events.ScriptEnded) -> None:
        known = [each for each in explain_findings(self.findings) if is_hazard(each)]
        if any(each.severity == ERROR or each.phase == "replay" for each in known):
            # What is run again may differ because of that.
            return
        lines = {each.frames[:1] for each in known}
        for rerun in self._regions.found():
            finding = self._finding(rerun)
            if finding.frames[:1] not in lines:
                self.findings.add(finding)
        for asked in self._regions.asked():
            self.findings.add(_of_query(asked))

    def _finding(self, rerun: Rerun) -> Finding:
        difference, items = rerun.difference, rerun.items
        before, after = difference.before, difference.after
        name = "`" + items[0].path + "`" if items else ""
        at = "".join(f" at line {each.line}" for each in rerun.place[:1])
        when = f"as the replay{at} begins"
        call = before or after
        assert call is not None
        evidence = tuple(item.text for item in items[:_SHOWN])
        evidence += (
            f"run just before the replay{at}, the captured code gives other values: "
            f"{', '.join(rerun.differing[:_SHOWN])}",
        )
        fix = None
        by = f", because {name} has changed" if name else ""
        if difference.kind == "branch":
            reason = f"the captured code runs other ops {when}{by}: {_branch(before, after)}"
            fix = _FIX_OF_BRANCH if items else _FIX_OF_FIRST
        elif difference.kind == "tensor":
            reason = (
                f"`{call.name}` reads another tensor {when}{by}; a replay reads that of the capture"
            )
        else:
            old, new = (
                textwrap.shorten(str(value), 60, placeholder=" ...")
                for value in (difference.old, difference.new)
            )
            what = " tensors" if difference.kind == "list" else ""
            reason = (
                f"`{call.name}` gets {new}{what} {when}{by}, where the capture had {old}; every "
                f"replay uses {old}"
            )
        return Finding(
            _CODES[difference.kind],
            reason,
            self._frames(rerun) or rerun.graph.frames,
            phase=self.phase,
            fix=fix,
            evidence=evidence,
        )

    def _frames(self, rerun: Rerun) -> Frames:
        """Where the program has the op, or what decides whether it runs."""
        difference, captured = rerun.difference, rerun.graph.frames
        before, after = difference.before, difference.after
        first, site = _inside(before, captured)
        second, site_again = _inside(after, captured)
        is_branch = difference.kind == "branch"
        if before is None or (after is not None and not is_branch) or difference.is_added:
            first, second = second, first
            site, site_again = site_again, site
        if site is None:
            return frames_of(first)
        is_end = before is None or after is None
        inner = frames_of_branch(first, None if is_end else second) if is_branch else ()
        line = line_of(site)
        if is_branch and site_again is not None and line_of(site_again) != line:
            decides = deciding_line(site[0], (line, line_of(site_again)))
            line, inner = (decides, ()) if decides else (line, inner)
        frame = replace(frame_of(site), line=line)
        function = site[0].co_qualname
        if function == RUNS_AGAIN:
            frame = replace(frame, function=captured[0].function if captured else function)
        return (*(inner or frames_of(first)), frame, *captured[1:])


def _inside(call: OpCall | None, captured: Frames) -> tuple[Chain, Site | None]:
    """The call chain of an op within the captured statements, and the site in these."""
    chain = () if call is None else call.chain
    again = [at for at, (code, _) in enumerate(chain) if code.co_qualname == RUNS_AGAIN]
    place = (captured[0].file, captured[0].function) if captured else ("", "")
    capturing = [
        at for at, (code, _) in enumerate(chain) if (code.co_filename, code.co_qualname) == place
    ]
    for at in (*again, *capturing[::-1]):
        return chain[:at], chain[at]
    return chain, None


def _branch(before: OpCall | None, after: OpCall | None) -> str:
    def text(call: OpCall) -> str:
        return f"`{call.name}`" + (f" of line {line_of(call.chain[0])}" if call.chain else "")

    if before is None:
        assert after is not None
        return f"{text(after)} runs, and not in the capture; no replay runs it"
    if after is None:
        return f"{text(before)} of the capture does not run; every replay repeats it"
    return f"{text(after)} in place of {text(before)}, which every replay repeats"


def _of_query(asked: Asked) -> Finding:
    return Finding(
        CODE_BRANCHES_ON_CAPTURING,
        "this line asks whether a stream is capturing; with the other answer, the code gives other "
        "values than a replay",
        asked.query,
        phase="capture",
        evidence=(f"other values: {', '.join(asked.differing[:_SHOWN])}",),
    )
