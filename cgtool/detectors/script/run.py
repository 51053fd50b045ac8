"""Run a script as ``__main__`` under all observers and detectors (``cgtool check SCRIPT``)."""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cgtool.analysis.reports import explain_findings, is_hazard
from cgtool.analysis.units import count_text
from cgtool.detectors.capture_errors import explain, is_refusal
from cgtool.detectors.refused_ops import reason_for
from cgtool.detectors.reporting import (
    Detector,
    FindingLog,
    is_reported,
    mark_reported,
    where_it_was_made,
)
from cgtool.detectors.script import (
    callables,
    capture_does_not_execute,
    capture_misuse,
    copies,
    frozen_regions,
    gradients,
    gradients_unscaled_twice,
    input_never_written,
    inputs,
    memory,
    output_of_dropped_graph,
    output_overwritten_by_next_replay,
    padding,
    pinned_sources,
    saved_tensor_overwritten,
    saved_tensors,
    settings,
    shared_pools,
    speed,
    unordered,
)
from cgtool.model.capture import Frames
from cgtool.model.failure import CgtoolError, cannot_tell, usage, user_code
from cgtool.model.finding import Finding
from cgtool.model.jobs import RUNS_SCRIPT
from cgtool.model.options import Progress
from cgtool.observe.call_sites import recorded
from cgtool.observe.frames import call_user, exception_frames
from cgtool.observe.script import calls, events, graphed_callables, streams
from cgtool.observe.script.script import ObservedScript
from cgtool.program.boundary import first_line, innermost, is_consequence, load_error, own_fault
from cgtool.program.objects import short, text_of
from cgtool.torch_compat.patches import Patches, set_profile

_OBSERVERS = (
    graphed_callables.observe_callables, calls.observe_modules, calls.observe_optimizers,
    calls.observe_calls, calls.observe_host_reads,
    calls.observe_allocator, calls.observe_driver, calls.observe_collectives, calls.observe_dlpack,
    streams.observe_streams, calls.observe_backward, calls.observe_swaps,
    calls.observe_storages,
)  # fmt: skip
"""In the order in which they patch. Suspended while compiled code runs."""

_DETECTORS: tuple[type[Detector], ...] = (
    callables.Callables, inputs.Inputs,
    copies.Copies, padding.Padding, gradients.Gradients, gradients.StaleNodes,
    gradients_unscaled_twice.Unscaled, saved_tensor_overwritten.SavedBetweenReplays,
    settings.Settings,
    output_overwritten_by_next_replay.KeptOutputs, output_of_dropped_graph.Abandoned,
    capture_does_not_execute.EarlyReads, capture_does_not_execute.NotRun,
    saved_tensors.SavedTensors, shared_pools.SharedPools,
    unordered.Unordered, unordered.PinnedReads, pinned_sources.PinnedSources,
    capture_misuse.Misuse, capture_misuse.Randomness, capture_misuse.Disturbances,
    capture_misuse.Races, capture_misuse.Collectives, memory.Workspaces,
    memory.Segments, memory.Pools, memory.Remains, speed.Waits, speed.Launches, speed.Compiled,
    frozen_regions.FrozenRegions, input_never_written.NeverWritten,
)  # fmt: skip
"""In the order in which they are called: what runs captured code again, and what is reported only
if nothing else is wrong, are the last."""


_USAGE_ERROR = 2
"""The exit status of argparse for invalid arguments."""


class Errors(Detector):
    """Findings behind the exceptions of ``CUDAGraph`` and of captured code."""

    def on_call_raised(self, event: events.CallRaised) -> None:
        if self.explain(event.error, event.phase, self.script.place()):
            return
        found = explain_findings(self.findings) if event.phase == "replay" else ()
        if any(is_hazard(each) and each.phase == "replay" for each in found):
            # It computes with what that finding is about: a position beyond the old cache.
            mark_reported(event.error)

    def on_thread_ended(self, event: events.ThreadEnded) -> None:
        self.explain(innermost(event.error), "script", exception_frames(event.error))

    def on_op_raised(self, event: events.OpRaised) -> None:
        # The script may catch this; the capture fails nevertheless.
        # After the first such op all others of the capture fail too.
        graph, error = event.graph, event.error
        if graph.disturbed:
            return
        if is_reported(error):
            graph.disturbed = True
            return
        call, record = event.call, graph.record
        refused = reason_for(call, record, event.args, event.kwargs) if is_refusal(error) else None
        finding = explain(error, "capture", refused=refused)
        if finding is None:
            return
        graph.disturbed = True
        mark_reported(error)
        # The code of a custom op is not observed: its line is in the traceback alone.
        inside = exception_frames(error)
        self.findings.add(
            replace(finding, frames=(*inside, *self.script.place()))
            if inside
            else where_it_was_made(finding, call, record)
        )

    def on_capture_failed(self, event: events.CaptureFailed) -> None:
        graph, inside = event.graph, event.code_error
        if inside is None and not graph.disturbed:
            self.explain(event.end_error, "capture", graph.unjoined_at() or self.script.place())
        elif inside is not None and graph.disturbed and is_consequence(text_of(inside)):
            mark_reported(inside)
        elif inside is not None:
            self.explain(inside, "capture")
        if event.end_error is not inside:
            # It says only that there was an error before it.
            mark_reported(event.end_error)

    def explain(self, error: BaseException, phase: str, frames: Frames = ()) -> bool:
        """Report what an exception means; False if it does not speak of a capture.

        The finding is at ``frames``, else at the line that raised.
        """
        if is_reported(error):
            return True
        finding = explain(error, phase)
        if finding is None:
            return False
        mark_reported(error)
        place = frames or exception_frames(error) or self.script.place()
        self.findings.add(replace(finding, frames=place))
        return True


def observe(script: ObservedScript, findings: FindingLog, patches: Patches) -> Errors:
    """Install all observers and subscribe all detectors, until ``patches`` are undone."""
    suspended = patches.enter_context(Patches())
    for install in _OBSERVERS:
        install(script, suspended)
    calls.observe_compile(script, patches, suspended)
    calls.observe_graphs(script, patches)
    # Its modes are entered last.
    calls.observe_ops(script, patches)
    errors = Errors(script, findings)
    for detector in _DETECTORS:
        detector(script, findings)
    return errors


def run(
    path: str,
    arguments: tuple[str, ...],
    script: ObservedScript,
    findings: FindingLog,
    progress: Progress,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, what was checked).

    A script that is interrupted by Ctrl-C was checked until then.

    Raises CgtoolError: exit 2 for a file that cannot be read; 4 for an exception or an exit status
    of the script's own that no finding explains, with the findings so far; 5 if it captured no
    graph.
    """
    code = _source(path)
    ended: tuple[str, ...] = ()
    progress(RUNS_SCRIPT)
    module: Any = None
    with Patches() as patches:
        # A capture that never ends is followed until here.
        patches.callback(set_profile, sys.getprofile())
        patches.enter_context(recorded())
        errors = observe(script, findings, patches)
        try:
            module = _execute(code, path, arguments)
        except SystemExit as error:
            if error.code not in (None, 0):
                ended = (_exited(path, error, findings),)
        except KeyboardInterrupt as error:
            ended = (_interrupted(error),)
        except CgtoolError as error:
            failure = error.failure
            kept = (*failure.findings, *findings.all())
            # The first finding is the cause only if the failure has brought it.
            phase = failure.phase if failure.findings else "script"
            raise CgtoolError(replace(failure, phase=phase, findings=kept)) from None
        except BaseException as error:
            ended = (_ended(path, error, errors),)
        ended += tuple(starmap(_thread_ended, script.failed_threads))
        script.finish()
        if script.failure is not None:
            raise script.failure
    del module
    captures, replays = len(script.graphs), sum(graph.replays for graph in script.graphs)
    if not captures and not script.compiled and not len(findings):
        raise _nothing_captured(path)
    counts = [count_text(captures, "capture"), count_text(replays, "replay")]
    if script.compiled:
        own = count_text(len(script.compiled), "capture")
        replayed = count_text(script.compiled_replays, "replay")
        counts.append(f"{own} and {replayed} of torch.compile's own graphs, which are not checked")
    again = count_text(len(script.run_again), "graph")
    looked_at = (f"the code of {again}, run again as replays began",) * bool(script.run_again)
    return findings.all(), (
        f"the script ({', '.join(counts)})",
        *looked_at,
        *_not_run_again(script),
        *ended,
    )


def _not_run_again(script: ObservedScript) -> Iterator[str]:
    """Sentences on graphs whose code was to run again and did not, one for each reason."""
    replayed = {graph.number for graph in script.graphs if graph.replays} - script.run_again
    reasons = Counter(why for number, why in script.not_run_again.items() if number in replayed)
    for why, count in reasons.items():
        yield f"not run again: the code of {count_text(count, 'graph')} ({why})"


def _source(path: str) -> types.CodeType:
    file = Path(path)
    try:
        text = file.read_bytes()
    except OSError as error:
        raise usage(
            f"cannot read the script {path!r}: {error.strerror or error}",
            fix="name a script, path/to/file.py:NAME or package.module:NAME",
        ) from None
    try:
        return compile(text, str(file.resolve()), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise load_error(path, error) from None


def _execute(code: types.CodeType, path: str, arguments: tuple[str, ...]) -> types.ModuleType:
    """The module that the script became; whatever it raises goes through."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=code.co_filename, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(code.co_filename).parent))
    call_user(exec, code, module.__dict__)
    return module


def _nothing_captured(path: str) -> CgtoolError:
    return cannot_tell(
        f"{path} captured no CUDA graph, so there was nothing to check",
        fix="name a function or module that should be captured: `cgtool check "
        f"{path}:NAME`; if the script captures only with certain arguments, pass them: "
        f"`cgtool check {path} ARGS`",
        phase="script",
    )


def _exited(path: str, error: SystemExit, findings: FindingLog) -> str:
    """The sentence on a script whose exit status findings explain."""
    if error.__context__ is not None and is_reported(innermost(error.__context__)):
        return f"it ended with sys.exit({error.code!r})"
    raise user_code(
        f"{path} ended with sys.exit({short(error.code)})",
        frames=exception_frames(error),
        fix=f"what follows the script is passed to it, and options of cgtool come before it: "
        f"`cgtool check OPTIONS {path} ARGS`"
        if error.code == _USAGE_ERROR
        else None,
        phase="script",
        findings=findings.all(),
    ) from None


def _interrupted(error: KeyboardInterrupt) -> str:
    at = "".join(f" at {each.short}" for each in exception_frames(error)[:1])
    return f"interrupted{at}, so what would have come later was not checked"


def _thread_ended(name: str, error: str, frames: Frames) -> str:
    """The sentence on a thread that an exception has ended."""
    at = "".join(f", raised at {each.short}" for each in frames[:1])
    return f"thread `{name}` ended with {error}{at}"


def _ended(path: str, error: BaseException, errors: Errors) -> str:
    """The sentence on a script that raised an exception which findings explain."""
    root = innermost(error)
    if is_reported(error) or is_reported(root) or errors.explain(root, "script"):
        return f"it ended with {type(error).__name__}: {first_line(error)}"
    if own_fault(error):
        raise error
    failure = load_error(path, error).failure
    raise CgtoolError(replace(failure, phase="script", findings=errors.findings.all())) from None
