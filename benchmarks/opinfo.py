"""Verdicts compared with what a GPU captured: `python benchmarks/opinfo.py --truth FILE`.

The entries are PyTorch's own databases of operators, modules and optimizers. FILE says of each
whether a plain capture of it succeeded: `--make-truth FILE` writes one on a GPU. Every entry
goes through `check` and `verify`, as if it were an ENTRY.

- ``--device gpu --sample 300`` compares the nodes and their lines too.
- ``--grad-mode inference_mode`` compares findings and op names with those without the mode.
- ``--save FILE`` keeps every outcome as a line of JSON; ``--only linalg_inv`` runs a part.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import os
import random
import re
import sys
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cgtool.jobs.dispatch import RUN, Context, open_device  # noqa: E402
from cgtool.model.failure import CgtoolError  # noqa: E402
from cgtool.model.finding import Finding  # noqa: E402
from cgtool.model.jobs import CheckJob, VerifyJob  # noqa: E402
from cgtool.model.options import CaptureOptions  # noqa: E402

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)
ONLY_ON_A_GPU = r"Could not run '\S+' with arguments from the 'CPU' backend|Jiterator is only"
BATCH = 200
"""Entries of one forked process."""
PATIENCE_S = 90
"""For one entry."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample of a database, and what a plain capture of it did."""

    kind: str
    """``op``, ``module`` or ``optim``."""
    name: str
    sample: int
    backward: bool = False
    training: bool | None = None
    capturable: bool | None = None
    captured: bool | None = None
    nodes: int | None = None
    error: str | None = None
    """The error behind all others, with its type in front."""
    inputs: str | None = None
    """What ``described`` says of the sample: the order of samples changes between releases."""

    @property
    def title(self) -> str:
        traits = ("backward", "training", "capturable")
        named = [trait for trait in traits if getattr(self, trait)]
        return " ".join((f"{self.name}[{self.sample}]", *named))


Step = Callable[[], Any]


# --- an entry as a function without arguments


@cache
def _databases() -> dict[str, dict[str, Any]]:
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    return {
        "op": {op.formatted_name: op for op in op_db},
        "module": {module.name: module for module in module_db},
        "optim": {optim.optim_cls.__name__: optim for optim in optim_db},
    }


def _chosen_dtype(op: Any) -> torch.dtype | None:
    supported = op.supported_dtypes("cuda")
    return next((dtype for dtype in DTYPES if dtype in supported), None)


def _tensors(values: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _gradients(outputs: Any, inputs: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    outputs = [tensor for tensor in _tensors(outputs) if tensor.requires_grad]
    inputs = [tensor for tensor in inputs if tensor.requires_grad]
    if not outputs or not inputs:
        return []
    ones = [torch.ones_like(tensor) for tensor in outputs]
    return list(torch.autograd.grad(outputs, inputs, ones, allow_unused=True))


def described(*values: Any) -> str:
    """Types, shapes and whole numbers of a sample: equal for the same sample of two releases."""

    def text(leaf: Any) -> str:
        if isinstance(leaf, torch.Tensor):
            return f"{leaf.dtype}{list(leaf.shape)}".removeprefix("torch.")
        plain = isinstance(leaf, int | torch.dtype) or leaf is None
        return str(leaf) if plain else type(leaf).__name__

    leaves, _ = torch.utils._pytree.tree_flatten_with_path(values)
    keys = torch.utils._pytree.keystr
    return " ".join(f"{keys(path)}={text(leaf)}" for path, leaf in leaves)


class NotInThisRelease(Exception):
    """This PyTorch has no such entry, or has it only on a GPU."""


def _chosen(samples: Iterable[Any], entry: Entry, parts: Callable[[Any], tuple[Any, ...]]) -> Any:
    """The sample of an entry, by its inputs if they are known; else by its number."""
    if entry.inputs is None:
        for sample in itertools.islice(samples, entry.sample, None):
            return sample
        raise NotInThisRelease("it has fewer samples")
    named = list(itertools.islice(samples, 200))
    order = sorted(range(len(named)), key=lambda number: abs(number - entry.sample))
    for number in order:
        if described(*parts(named[number])) == entry.inputs:
            return named[number]
    raise NotInThisRelease(entry.inputs)


def _op_parts(sample: Any) -> tuple[Any, ...]:
    return sample.input, sample.args, sample.kwargs


def _op_step(entry: Entry) -> Step:
    op = _databases()["op"][entry.name]
    dtype = _chosen_dtype(op)
    if dtype is None:
        raise NotInThisRelease("it has none of the types")
    samples = op.sample_inputs("cuda", dtype, requires_grad=entry.backward)
    sample = _chosen(samples, entry, _op_parts)
    inputs = _tensors((sample.input, sample.args, sample.kwargs))

    def forward():
        return op(sample.input, *sample.args, **sample.kwargs)

    def forward_and_backward():
        outputs = op(sample.input, *sample.args, **sample.kwargs)
        return outputs, _gradients(outputs, inputs)

    return forward_and_backward if entry.backward else forward


def _module_step(entry: Entry, backward: bool) -> Step:
    info = _databases()["module"][entry.name]
    samples = info.module_inputs_func(
        info, device="cuda", dtype=torch.float32, requires_grad=backward, training=entry.training
    )
    sample = list(samples)[entry.sample]
    made = sample.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).to("cuda").train(bool(entry.training))
    given = sample.forward_input
    inputs = [*_tensors((given.args, given.kwargs)), *module.parameters()]

    def forward():
        return module(*given.args, **given.kwargs)

    def forward_and_backward():
        outputs = module(*given.args, **given.kwargs)
        return outputs, _gradients(outputs, inputs)

    return forward_and_backward if backward else forward


def _optim_step(entry: Entry) -> Step:
    info = _databases()["optim"][entry.name]
    options = dict(list(info.optim_inputs_func("cuda"))[entry.sample].kwargs)
    if entry.capturable:
        options["capturable"] = True
    model = torch.nn.Linear(8, 8).to("cuda")
    optimizer = info.optim_cls(model.parameters(), **options)
    x = torch.randn(4, 8, device="cuda")

    def train():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return train


def build(entry: Entry, grad_mode: str | None = None) -> Step:
    """The function that is captured; ``grad_mode`` runs only its forward, under this mode."""
    torch.manual_seed(0)
    if grad_mode is None:
        if entry.kind == "module":
            return _module_step(entry, backward=True)
        return _op_step(entry) if entry.kind == "op" else _optim_step(entry)
    forward = msgspec.structs.replace(entry, backward=False)
    step = _module_step(forward, False) if entry.kind == "module" else _op_step(forward)
    if grad_mode == "none":
        return step
    mode = getattr(torch, grad_mode)

    def run():
        with mode():
            return step()

    return run


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
    """The entry with what a plain capture of it does."""
    step = build(entry)
    try:
        return msgspec.structs.replace(entry, captured=True, nodes=plain_nodes(step))
    except Exception as error:
        cause: BaseException = error
        while cause.__context__ is not None:
            cause = cause.__context__
        text = f"{type(cause).__name__}: {str(cause).splitlines()[0]}"
        return msgspec.structs.replace(entry, captured=False, error=text)


def all_entries() -> Iterator[Entry]:
    """The first three samples of each member of the databases."""
    for kind, members in _databases().items():
        for name, member in members.items():
            for sample in range(3):
                if kind == "op":
                    yield Entry(kind, name, sample)
                    if member.supports_autograd:
                        yield Entry(kind, name, sample, backward=True)
                elif kind == "module":
                    for training in (False, True):
                        yield Entry(kind, name, sample, training=training)
                else:
                    for capturable in (False, True):
                        yield Entry(kind, name, sample, capturable=capturable)


# --- one entry through `check` and `verify`


class Outcome(msgspec.Struct, omit_defaults=True):
    """What cgtool said of an entry."""

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
    return RUN[kind](job, Context(open_device(wanted), _quiet))


def _hazards(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    from cgtool.analysis.reports import explain_findings

    shown = explain_findings(tuple(findings))
    return [
        (finding.code, finding.severity, finding.reason)
        for finding in shown
        if finding.severity in ("error", "warning")
    ]


def _check(outcome: Outcome, grad_mode: str | None, device: str) -> None:
    def factory():
        return build(outcome.entry, grad_mode)

    try:
        captured, report = _job(CheckJob, factory, device)
    except CgtoolError as error:
        if isinstance(error.__cause__, NotInThisRelease):
            raise error.__cause__ from None
        if device == "simulated" and re.search(ONLY_ON_A_GPU, error.failure.what):
            raise NotInThisRelease(error.failure.what) from None
        outcome.stopped = f"{error.failure.what} {error.failure.why or ''}"
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
        outcome.verified = f"{error.failure.what} {error.failure.why or ''}"
        return
    code = exit_code(report)
    inexact = [each.name for each in report.comparisons if not each.exact]
    if code == 0 and not inexact:
        outcome.verified = "equal"
    else:
        said = _hazards(report.findings) or [note.code for note in report.notes]
        outcome.verified = f"exit {code}: not exact {inexact[:3]}, {said}"


def _difference(outcome: Outcome, other: Outcome) -> str:
    codes, other_codes = ([code for code, *_ in each.findings] for each in (outcome, other))
    if codes != other_codes:
        return f"found {codes}, with the mode {other_codes}"
    if outcome.ops != other.ops:
        return f"ops {outcome.ops[:9]}, with the mode {other.ops[:9]}"
    return "equal"


def examine(entry: Entry, given: argparse.Namespace) -> Outcome:
    """One entry, in this process."""
    if given.make_truth:
        return Outcome(truth_of(entry))
    outcome = Outcome(entry)
    started = time.perf_counter()
    _check(outcome, given.grad_mode and "none", given.device)
    if given.grad_mode:
        other = Outcome(entry)
        _check(other, given.grad_mode, given.device)
        outcome.verified = _difference(outcome, other)
        return outcome
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


# --- the judgement

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
"""What an error of the truth may be called, by a pattern of its text."""


def verdict(outcome: Outcome) -> str | None:
    """What is wrong with the findings of an entry; None if they agree with the truth."""
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
    """What differs with a grad mode."""
    compared = [outcome for outcome in outcomes if not outcome.absent]
    for outcome in compared:
        if outcome.verified != "equal":
            print(f"{outcome.entry.title}: {outcome.verified or outcome.stopped}")
    equal = sum(outcome.verified == "equal" for outcome in compared)
    print(f"the same findings and ops: {share(equal, len(compared))}")
    return equal == len(compared)


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
    if given.make_truth:
        given.device = "gpu"
        with given.make_truth.open("wb") as file:
            for outcome in in_workers(list(all_entries()), given):
                if not outcome.absent and outcome.stopped is None:
                    file.write(msgspec.json.encode(outcome.entry) + b"\n")
        return
    if given.truth is None:
        parser.error("--truth FILE says what a GPU captures; --make-truth FILE makes one on a GPU")
    lines = given.truth.read_bytes().splitlines()
    entries = [msgspec.json.decode(line, type=Entry) for line in lines]
    entries = [entry for entry in entries if re.search(given.only, entry.name)]
    if given.grad_mode:
        # Forwards, each once.
        forwards = [entry for entry in entries if entry.kind != "optim" and not entry.backward]
        entries = [entry for entry in forwards if not entry.training]
    if given.sample:
        entries = random.Random(given.seed).sample(entries, min(given.sample, len(entries)))
    if given.device == "simulated":
        _databases()
        # The databases are half a million objects: a collection takes a second with them.
        gc.freeze()
    outcomes = []
    with given.save.open("wb", 0) if given.save else contextlib.nullcontext() as saved:
        for outcome in in_workers(entries, given):
            outcomes.append(outcome)
            if saved:
                saved.write(msgspec.json.encode(outcome) + b"\n")
    enough = show_modes(outcomes) if given.grad_mode else show(outcomes)
    if given.device == "gpu":
        enough &= show_nodes(outcomes)
    sys.exit(not enough)


if __name__ == "__main__":
    main()
