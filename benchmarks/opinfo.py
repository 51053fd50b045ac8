"""Verdicts compared with what a GPU captured: `python benchmarks/opinfo.py --truth FILE`.

The entries are PyTorch's own databases of operators, modules and optimizers. FILE says of each
whether a plain capture of it succeeded: `--make-truth FILE` writes one on a GPU. Every entry
goes through `check` and `verify`, as if it were an ENTRY.

- ``--device gpu --sample 300`` compares the nodes and their lines too.
- ``--grad-mode inference_mode`` compares findings and op names with those without the mode.
- ``--save FILE`` keeps every outcome as a line of JSON; entries that FILE has already are not run
  again. ``--only linalg_inv`` runs a part.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import random
import re
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.databases import (  # noqa: E402
    Entry,
    NotInThisRelease,
    Step,
    all_entries,
    build,
    databases,
    listed_entries,
    under,
    with_inputs,
)
from benchmarks.watched_ops import profiled_names  # noqa: E402
from cgtool.jobs.dispatch import RUN, JobContext, open_device  # noqa: E402
from cgtool.model.failure import CgtoolError  # noqa: E402
from cgtool.model.finding import Finding  # noqa: E402
from cgtool.model.jobs import CheckJob, VerifyJob  # noqa: E402
from cgtool.model.options import CaptureOptions  # noqa: E402

ONLY_ON_A_GPU = r"Could not run '\S+' with arguments from the 'CPU' backend|Jiterator is only"
BATCH = 200
"""Entries of one forked process."""
PATIENCE_S = 90
"""For one entry."""


# --- the truth


def plain_nodes(step: Step) -> int:
    """How many nodes a capture by hand has. Raises what the capture raises."""
    from benchmarks.gpu import types_of

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        kept = step()
    del kept
    return sum(types_of(graph).values())


def truth_of(entry: Entry) -> Entry:
    """The entry with its inputs, and what a plain capture of it does."""
    entry = with_inputs(entry)
    step = build(entry)
    try:
        return msgspec.structs.replace(entry, captured=True, nodes=plain_nodes(step))
    except Exception as error:
        cause: BaseException = error
        while cause.__context__ is not None:
            cause = cause.__context__
        text = f"{type(cause).__name__}: {str(cause).splitlines()[0]}"
        return msgspec.structs.replace(entry, captured=False, error=text)


# --- one entry through `check` and `verify`


class Outcome(msgspec.Struct, omit_defaults=True):
    """The findings and the verdict of cgtool on an entry."""

    entry: Entry
    findings: list[tuple[str, str, str]] = []
    """Code, severity and reason, of errors and warnings."""
    stopped: str | None = None
    """Why `check` has no report."""
    absent: bool = False
    """This PyTorch has no such entry."""
    nodes: int | None = None
    """Of the capture that `check` made."""
    plain_nodes: int | None = None
    """Of a capture by hand, on a GPU."""
    holes: list[str] = []
    """Nodes without op, line or forward line, by what they lack."""
    ops: list[str] = []
    verified: str | None = None
    """``equal``, what differs, or why it was not compared."""
    seconds: float = 0


def _quiet(_text: str) -> None:
    """No progress."""


def _job(kind: type, factory: Callable[[], Step], device: str) -> Any:
    """Do a job of cgtool with a factory as the ENTRY. Raises CgtoolError."""
    module = types.ModuleType("opinfo_entry")
    module.__dict__.update(build=factory, __file__=__file__)
    factory.__module__ = module.__name__
    sys.modules[module.__name__] = module
    wanted = "simulated" if device == "simulated" else None
    job = kind(spec="opinfo_entry:build", capture_options=CaptureOptions(device=wanted))
    return RUN[kind](job, JobContext(open_device(wanted), _quiet))


def _hazards(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    from cgtool.analysis.reports import explain_findings

    shown = explain_findings(tuple(findings))
    return [
        (finding.code, finding.severity, finding.reason)
        for finding in shown
        if finding.severity in ("error", "warning")
    ]


def _check(
    outcome: Outcome, device: str, *, forward: bool = False, mode: str | None = None
) -> None:
    def factory():
        return under(mode, build(outcome.entry, forward=forward))

    try:
        captured, report = _job(CheckJob, factory, device)
    except CgtoolError as error:
        if isinstance(error.__cause__, NotInThisRelease):
            raise error.__cause__ from None
        if device == "simulated" and re.search(ONLY_ON_A_GPU, error.failure.message):
            raise NotInThisRelease(error.failure.message) from None
        outcome.stopped = f"{error.failure.message} {error.failure.why or ''}"
        outcome.findings = _hazards(error.failure.findings)
        return
    outcome.findings = _hazards(report.findings)
    if captured is not None:
        capture, _ = captured
        outcome.nodes = sum(len(graph.nodes) for graph in capture.graphs)
        origins = [
            capture.origins[node.origin] if node.origin is not None else None
            for graph in capture.graphs
            for node in graph.nodes
        ]
        outcome.ops = [origin.op if origin and origin.op else "?" for origin in origins]
        for origin in origins:
            if origin is None or origin.op is None:
                outcome.holes.append("op")
            elif not origin.frames:
                outcome.holes.append("line")
            elif origin.autograd_node is not None and origin.forward is None:
                outcome.holes.append("forward line")


def _verify(outcome: Outcome, device: str) -> None:
    from cgtool.analysis.reports import exit_code

    def factory():
        return build(outcome.entry)

    try:
        _, report = _job(VerifyJob, factory, device)
    except CgtoolError as error:
        outcome.verified = f"{error.failure.message} {error.failure.why or ''}"
        return
    code = exit_code(report)
    inexact = [each.name for each in report.comparisons if not each.exact]
    if code == 0 and not inexact:
        outcome.verified = "equal"
    else:
        said = _hazards(report.findings) or [note.code for note in report.notes]
        outcome.verified = f"exit {code}: not exact {inexact[:3]}, {said}"


AS_PROFILED = "other ops, as the profiler sees them in plain runs"


def _compare_modes(outcome: Outcome, mode: str, device: str) -> str:
    """Changes of a forward's findings and ops under a grad mode."""
    other = Outcome(outcome.entry)
    _check(outcome, device, forward=True)
    _check(other, device, forward=True, mode=mode)
    codes, other_codes = ([code for code, *_ in each.findings] for each in (outcome, other))
    if codes != other_codes:
        return f"found {codes}, with the mode {other_codes}"
    if outcome.ops == other.ops:
        return "equal"
    changed = _changed(*([op.partition(".")[0] for op in each.ops] for each in (outcome, other)))
    step = build(outcome.entry, "cpu", forward=True)
    step()
    plain = _changed(profiled_names(step), profiled_names(under(mode, step)))
    if changed and all(plain[op] == count for op, count in changed.items()):
        return AS_PROFILED
    return f"ops {dict(changed)}, in plain runs {dict(plain)}"


def _changed(ops: Iterable[str], other: Iterable[str]) -> Counter[str]:
    """How many more of each op there are in the other run."""
    difference = Counter(other)
    difference.subtract(Counter(ops))
    return Counter({op: count for op, count in difference.items() if count})


def examine(entry: Entry, given: argparse.Namespace) -> Outcome:
    """One entry, in this process."""
    if given.make_truth:
        return Outcome(truth_of(entry))
    outcome = Outcome(entry)
    started = time.perf_counter()
    if given.grad_mode:
        outcome.verified = _compare_modes(outcome, given.grad_mode, given.device)
        return outcome
    _check(outcome, given.device)
    if given.device == "gpu" and outcome.nodes is not None:
        outcome.plain_nodes = plain_nodes(build(entry))
    if given.verify and entry.nodes and not outcome.findings and outcome.stopped is None:
        _verify(outcome, given.device)
    outcome.seconds = round(time.perf_counter() - started, 3)
    return outcome


# --- all of them, a few hundred a process


def _work(entries: Sequence[Entry], given: argparse.Namespace, answers: Connection) -> None:
    """The life of a worker process."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    torch.set_num_threads(1)
    for entry in entries:
        try:
            outcome = examine(entry, given)
        except NotInThisRelease as error:
            outcome = Outcome(entry, absent=True, stopped=str(error))
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = Outcome(entry, stopped=f"{error!r} at {where.filename}:{where.lineno}")
        answers.send_bytes(msgspec.json.encode(outcome))
        captured = outcome.entry.captured if given.make_truth else outcome.nodes is not None
        if given.device == "gpu" and not captured:
            # A failed capture leaves streams and generators unusable.
            break
    os._exit(0)


@dataclass
class _Worker:
    """A process, and the entries that it has not reported yet."""

    process: BaseProcess
    answers: Connection
    left: list[Entry]
    since: float


def in_workers(entries: Sequence[Entry], given: argparse.Namespace) -> Iterator[Outcome]:
    """The outcome of each entry, from processes of a few hundred. One that ends early is replaced
    by another for what it has left, so an entry that crashes costs only itself."""
    # The databases ask for the GPU while they are imported; no CUDA survives a fork.
    method = "spawn" if given.device == "gpu" else "fork"
    context: Any = multiprocessing.get_context(method)
    size = min(BATCH, -(-len(entries) // given.jobs)) or 1
    waiting = [list(entries[start : start + size]) for start in range(0, len(entries), size)]
    running: list[_Worker] = []
    while waiting or running:
        while waiting and len(running) < given.jobs:
            left = waiting.pop(0)
            answers, end = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(left, given, end))
            process.start()
            end.close()
            running.append(_Worker(process, answers, left, time.monotonic()))
        ready = wait([worker.answers for worker in running], timeout=1)
        for worker in list(running):
            if time.monotonic() - worker.since > PATIENCE_S:
                worker.process.kill()
            elif worker.answers not in ready:
                continue
            try:
                outcome = msgspec.json.decode(worker.answers.recv_bytes(), type=Outcome)
            except EOFError:
                worker.process.join()
                running.remove(worker)
                if worker.process.exitcode and worker.left:
                    ended = f"the process ended with {worker.process.exitcode}"
                    yield Outcome(worker.left.pop(0), stopped=ended)
                if worker.left:
                    waiting.append(worker.left)
                continue
            worker.since = time.monotonic()
            worker.left.pop(0)
            yield outcome


# --- the judgment

_COPIES = "sync-d2h-copy|h2d-pageable-copy|h2d-tensor-from-python|h2d-index-with-list-or-cpu-tensor"
_IN_KERNELS = "linalg-error-check|hidden-sync-in-stock-module"
_WAITS = (
    "sync-item|sync-dynamic-shape-op|sync-truth-value|sync-masked-assignment|linalg-error-check|"
    "hidden-sync-in-stock-module|sync-slice-with-tensor-bounds|sync-print-or-format"
)
MEANINGS = {
    r"set_current_seed": "rng-state-access",
    r"Attempting CUDA graph capture of step": "optimizer-not-capturable",
    r"^KeyError: 'capturable'": "optimizer-adafactor-keyerror",
    r"Cannot copy between CPU and CUDA": f"{_COPIES}|{_IN_KERNELS}",
    r"cusolver error": "linalg-error-check",
    r"operation not permitted when stream is capturing": f"{_WAITS}|{_COPIES}",
}
"""Codes that fit an error of the truth, by a pattern of its text."""


def verdict(outcome: Outcome) -> str | None:
    """A sentence on the findings of an entry that are wrong; None if they agree with the truth."""
    entry = outcome.entry
    nothing = "empty-graph" if entry.nodes == 0 else None
    codes = [code for code, _, _ in outcome.findings if code != nothing]
    if outcome.stopped is not None and not codes:
        return f"stopped: {outcome.stopped}"
    if entry.captured:
        return f"false alarm: {outcome.findings}" if codes else None
    meaning = next(
        (codes for pattern, codes in MEANINGS.items() if re.search(pattern, entry.error or "")), ""
    )
    if not codes:
        return f"missed: {entry.error}"
    if not any(re.fullmatch(meaning, code) for code in codes):
        return f"another reason: {codes} for {entry.error}"
    return None


def share(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.1%})" if total else "none"


def show(outcomes: Sequence[Outcome]) -> bool:
    """Print what is wrong, then the figures; True if each is at least what is required."""
    absent = sum(outcome.absent for outcome in outcomes)
    outcomes = [outcome for outcome in outcomes if not outcome.absent]
    wrong = [(outcome, text) for outcome in outcomes if (text := verdict(outcome)) is not None]
    for outcome, text in wrong:
        print(f"{outcome.entry.title}: {text}")
    verified = [outcome for outcome in outcomes if outcome.verified is not None]
    for outcome in verified:
        if outcome.verified != "equal":
            print(f"{outcome.entry.title}: verify: {outcome.verified}")
    captured = [outcome for outcome in outcomes if outcome.entry.captured]
    refused = [outcome for outcome in outcomes if not outcome.entry.captured]
    missed = sum(not outcome.entry.captured for outcome, _ in wrong)
    alarms = len(wrong) - missed
    equal = sum(outcome.verified == "equal" for outcome in verified)
    print(f"refusals found, for the true reason: {share(len(refused) - missed, len(refused))}")
    print(f"captures without error or warning: {share(len(captured) - alarms, len(captured))}")
    print(f"replay equal to eager to the last bit: {share(equal, len(verified))}")
    print(f"not in this PyTorch: {absent}")
    enough = missed <= 0.01 * len(refused) and alarms <= 0.005 * len(captured)
    return enough and equal == len(verified)


def show_modes(outcomes: Sequence[Outcome]) -> bool:
    """Entries that differ with a grad mode."""
    compared = [outcome for outcome in outcomes if not outcome.absent]
    for outcome in compared:
        if outcome.verified != "equal":
            print(f"{outcome.entry.title}: {outcome.verified or outcome.stopped}")
    verdicts = Counter(outcome.verified for outcome in compared)
    print(f"the same findings and ops: {share(verdicts['equal'], len(compared))}")
    print(f"{AS_PROFILED}: {verdicts[AS_PROFILED]}")
    return verdicts["equal"] + verdicts[AS_PROFILED] == len(compared)


def show_nodes(outcomes: Sequence[Outcome]) -> bool:
    """The nodes that a GPU captured, compared with those of a plain capture."""
    counted = [outcome for outcome in outcomes if outcome.nodes is not None]
    for outcome in counted:
        if outcome.nodes != outcome.plain_nodes or outcome.holes:
            plain = f"{outcome.nodes} nodes for {outcome.plain_nodes}"
            print(f"{outcome.entry.title}: {plain}, unknown: {dict(Counter(outcome.holes))}")
    nodes = sum(outcome.nodes or 0 for outcome in counted)
    holes = sum(len(outcome.holes) for outcome in counted)
    equal = sum(outcome.nodes == outcome.plain_nodes for outcome in counted)
    print(f"nodes as many as in a plain capture: {share(equal, len(counted))}")
    print(f"nodes with op, line and forward line: {share(nodes - holes, nodes)}")
    return equal == len(counted) and not holes


def _saved(path: Path | None, wanted: Set[Entry]) -> list[Outcome]:
    """The outcomes of an earlier run that ended before its last entry."""
    lines = path.read_bytes().splitlines() if path is not None and path.exists() else []
    outcomes = [msgspec.json.decode(line, type=Outcome) for line in lines]
    return [outcome for outcome in outcomes if outcome.entry in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--make-truth", type=Path)
    parser.add_argument("--device", choices=["gpu", "simulated"], default="simulated")
    parser.add_argument("--grad-mode", choices=["no_grad", "inference_mode"])
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-verify", dest="verify", action="store_false")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    if given.truth is None and given.make_truth is None:
        parser.error("--truth FILE says what a GPU captures; --make-truth FILE makes one on a GPU")
    entries = list(all_entries()) if given.make_truth else listed_entries(given.truth)
    entries = [entry for entry in entries if re.search(given.only, entry.name)]
    if given.grad_mode:
        # Forwards, each once.
        forwards = [entry for entry in entries if entry.kind != "optim" and not entry.backward]
        entries = [entry for entry in forwards if not entry.training]
    if given.sample:
        entries = random.Random(given.seed).sample(entries, min(given.sample, len(entries)))
    if given.make_truth:
        given.device = "gpu"
        with given.make_truth.open("wb") as file:
            for outcome in in_workers(entries, given):
                if not outcome.absent and outcome.stopped is None:
                    file.write(msgspec.json.encode(outcome.entry) + b"\n")
        return
    if given.device == "simulated":
        databases()
        # The databases are half a million objects: a collection takes a second with them.
        gc.freeze()
    outcomes = _saved(given.save, set(entries))
    entries = [entry for entry in entries if entry not in {done.entry for done in outcomes}]
    with given.save.open("ab", 0) if given.save else contextlib.nullcontext() as saved:
        for outcome in in_workers(entries, given):
            outcomes.append(outcome)
            if saved:
                saved.write(msgspec.json.encode(outcome) + b"\n")
    enough = show_modes(outcomes) if given.grad_mode else show(outcomes)
    if given.device == "gpu":
        enough &= show_nodes(outcomes)
    sys.exit(0 if enough else 3)


if __name__ == "__main__":
    main()
