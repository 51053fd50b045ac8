"""Watching and simulating leave the ops as they are: `python benchmarks/watched_ops.py`.

The entries are samples of PyTorch's own databases of operators, modules and optimizers, forward
and backward, also under ``no_grad`` and ``inference_mode``. Each runs three times on the CPU under
PyTorch's profiler: as it is, under the op recorder's observer, and on the simulated device. The
profiler must see the same ops in all three, with the same nesting, and the observer must see the
ops that the profiler saw.

- ``--entries FILE`` takes the entries from a list (JSON lines: kind, name, sample, backward ...).
- ``--every 10`` runs every tenth entry; ``--only linalg`` those with this in their name.

Exit code 1 if anything differs that ``EXPECTED`` does not explain.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
    listed_entries,
)
from cgtool.devices.simulated.device_model import DeviceModel  # noqa: E402
from cgtool.devices.simulated.redirect import redirected  # noqa: E402
from cgtool.torch_compat import op_key  # noqa: E402

BATCH = 200
"""Entries of one forked process."""
GRAD_MODES: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
PASSED = ("aten::detach", "aten::detach_", "aten::alias", "aten::lift_fresh")
"""Ops that pass the observer: they launch nothing."""
EXPECTED = dict.fromkeys(
    (
        "nn_functional_scaled_dot_product_attention", "nn_functional_multi_head_attention_forward",
        "nn.Transformer", "nn.TransformerEncoder", "nn.TransformerEncoderLayer",
        "nn.TransformerDecoderLayer",
    ),
    "a GPU runs attention by other ops",
) | {
    "nn_functional_one_hot": "a GPU does not read the classes",
    "sparse_sampled_addmm": "cgtool reads the indices of a CSR tensor",
}  # fmt: skip
"""Entries whose ops differ on the simulated device, and why."""


class Op(NamedTuple):
    """An op that the profiler saw, and those that ran inside it."""

    name: str
    inside: tuple[Op, ...]


has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def profiled(step: Step) -> tuple[Op, ...]:
    """The ops that PyTorch's profiler sees."""
    torch.manual_seed(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    events = profile.events() or []
    return _ops([event for event in events if event.cpu_parent is None])


def profiled_names(step: Step) -> list[str]:
    """Their names, those inside others too."""

    def names(ops: Iterable[Op]) -> list[str]:
        return [name for op in ops for name in (op.name, *names(op.inside))]

    return names(profiled(step))


def _ops(events: Any) -> tuple[Op, ...]:
    ops: list[Op] = []
    for event in sorted(events, key=lambda event: event.time_range.start):
        inside = _ops(event.cpu_children)
        ops += (Op(event.name, inside),) if event.name in op_names() else inside
    return tuple(ops)


@cache
def op_names() -> dict[str, bool]:
    """Names of all ops, without overloads, and whether one only calls others."""
    names: dict[str, bool] = {}
    for name in torch._C._dispatch_get_all_op_names():
        calls_others = has_kernel(name, "CompositeImplicitAutograd")
        base = name.partition(".")[0]
        if not base.startswith("profiler::"):
            names[base] = names.get(base, False) or calls_others
    return names


def difference(ops: tuple[Op, ...], others: tuple[Op, ...], path: str = "") -> str | None:
    """Where two runs first differ."""
    for left, right in itertools.zip_longest(ops, others):
        if left is None or right is None or left.name != right.name:
            names = [op.name if op is not None else "nothing" for op in (left, right)]
            return f"{path}{names[0]} became {names[1]}"
        found = difference(left.inside, right.inside, f"{path}{left.name} > ")
        if found is not None:
            return found
    return None


def missed(ops: tuple[Op, ...], observed: list[str]) -> str | None:
    """Compare what the observer saw, in order, with what the profiler saw: an op, or else all that
    ran inside it. The observer's names that are left must be none."""
    left = collections.deque(observed)

    def is_next(op: Op) -> bool:
        return bool(left) and left[0] == op.name

    def visit(op: Op) -> str | None:
        if is_next(op):
            left.popleft()
            return None
        is_made_of_others = op_names()[op.name]
        for inner in op.inside:
            reason = visit(inner)
            if reason is not None:
                return reason
            if is_next(op) and not is_made_of_others:
                # Autograd has copied what the op is about to write; now comes the op itself.
                left.popleft()
                return None
        # An op that is made of others may have nothing to call: `to` the same dtype.
        return None if is_made_of_others or op.name in PASSED else f"{op.name} was not observed"

    reason = next(filter(None, map(visit, ops)), None)
    if reason is None and left:
        return f"{left[0]} was observed, but did not run"
    return reason


def judge(entry: Entry, grad_mode: str) -> dict[str, str | None]:
    """Ops that differ from a plain run, by the way of watching. Raises what the step raises."""
    observed: list[str] = []

    def observe(op: Any, args: Any, kwargs: Any, run: Any, _caller: Any) -> Any:
        name = op.name().partition(".")[0]
        if name in op_names():
            observed.append(name)
        return run(*args, **kwargs)

    # On a GPU foreach is the default.
    given = {"foreach": False}
    try:
        step, other = build(entry, "cpu", **given), build(entry, "cpu", **given)
    except NotInThisRelease:
        return {"skipped: not in this release": None}
    with GRAD_MODES[grad_mode]():
        try:
            step()
        except Exception:
            return {"skipped: not on the CPU": None}
        plain = profiled(step)
        if difference(plain, profiled(step)) is not None:
            return {"skipped: other ops in each run": None}
        with op_key.watch(observe):
            for _ in range(4):
                other()  # makes the tensors of the numbers that both use
            observed.clear()
            watched = profiled(step)
    result = {"watched": difference(plain, watched), "observed": missed(watched, observed)}
    with redirected(DeviceModel()):
        step = build(entry, "cuda", **given)
        with GRAD_MODES[grad_mode]():
            for _ in range(3):
                step()
            observed.clear()
            with op_key.watch(observe):
                simulated = profiled(step)
    result["simulated"] = difference(plain, simulated)
    result["observed there"] = missed(simulated, observed)
    return result


def _batch(entries: list[Entry]) -> list[tuple[Entry, str, str, str | None]]:
    outcomes: list[tuple[Entry, str, str, str | None]] = []
    for entry in entries:
        # Without gradients there is no backward.
        grad_modes = ("grad",) if entry.backward or entry.kind == "optim" else GRAD_MODES
        for grad_mode in grad_modes:
            try:
                results = judge(entry, grad_mode)
            except Exception:
                line = traceback.format_exc(limit=-3).strip().replace("\n", " / ")
                results = {"error": line[-300:]}
            outcomes += [(entry, grad_mode, way, what) for way, what in results.items()]
    return outcomes


def _forked(entries: list[Entry]) -> Sequence[tuple[Entry, str, str, str | None]]:
    """The outcomes of a forked process; those of a process that died are errors."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(msgspec.json.encode(_batch(entries)))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        return [(entry, "", "died", "yes") for entry in entries]
    return msgspec.json.decode(text, type=list[tuple[Entry, str, str, str | None]])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["KINETO_LOG_LEVEL"] = "99"
    entries = list(listed_entries(options.entries) if options.entries else all_entries())
    # A CPU has no capturable optimizers.
    entries = [entry for entry in entries if options.only in entry.name and not entry.capturable]
    entries = entries[:: options.every]
    compared: collections.Counter[str] = collections.Counter()
    differing: collections.Counter[str] = collections.Counter()
    expected: collections.Counter[str] = collections.Counter()
    for start in range(0, len(entries), BATCH):
        for entry, grad_mode, way, what in _forked(entries[start : start + BATCH]):
            compared[way] += 1
            if what is not None and way == "simulated" and entry.name in EXPECTED:
                expected[EXPECTED[entry.name]] += 1
                compared[way] -= 1
            elif what is not None:
                differing[way] += 1
                print(f"{way:15} {entry.title} {grad_mode}: {what}", flush=True)
    for way, count in compared.items():
        print(f"{way}: {count - differing[way]} of {count}")
    for cause, count in expected.items():
        print(f"simulated, expected ({cause}): {count}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
