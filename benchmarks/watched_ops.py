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
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cgtool.devices.simulated.device_model import DeviceModel  # noqa: E402
from cgtool.devices.simulated.redirect import redirected  # noqa: E402
from cgtool.torch_compat import op_key  # noqa: E402

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)
SAMPLES = 3
BATCH = 200
"""Entries of one forked process."""
GRAD_MODES: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
PASSED = ("aten::detach", "aten::detach_", "aten::alias", "aten::lift_fresh")
"""Ops that pass the observer: they launch nothing."""
EXPECTED = {
    "nn_functional_one_hot": "a GPU does not read the classes",
    "nn_functional_scaled_dot_product_attention": "a GPU has one op for dropout",
    "nn_functional_multi_head_attention_forward": "a GPU has one op for dropout",
    "sparse_sampled_addmm": "cgtool reads the indices of a CSR tensor",
}
"""Entries whose ops differ on the simulated device, and why."""


class Entry(NamedTuple):
    """One sample of a database."""

    kind: str
    name: str
    sample: int
    backward: bool = False
    training: bool = False

    @property
    def title(self) -> str:
        traits = (trait for trait in ("backward", "training") if getattr(self, trait))
        return " ".join((f"{self.name}[{self.sample}]", *traits))


class Op(NamedTuple):
    """An op that the profiler saw, and those that ran inside it."""

    name: str
    inside: tuple[Op, ...]


Step = Callable[[], Any]
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


@cache
def databases() -> dict[str, dict[str, Any]]:
    """PyTorch's databases, by kind and name."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    return {
        "op": {op.formatted_name: op for op in op_db},
        "module": {module.name: module for module in module_db},
        "optim": {optim.optim_cls.__name__: optim for optim in optim_db},
    }


def all_entries() -> Iterator[Entry]:
    """The first samples of every operator, module and optimizer."""
    for op in databases()["op"].values():
        for sample, backward in itertools.product(range(SAMPLES), (False, True)):
            if not backward or op.supports_autograd:
                yield Entry("op", op.formatted_name, sample, backward)
    for name in databases()["module"]:
        for sample, training in itertools.product(range(SAMPLES), (False, True)):
            yield Entry("module", name, sample, True, training)
    for name in databases()["optim"]:
        for sample in range(SAMPLES):
            yield Entry("optim", name, sample, True)


def listed_entries(path: str) -> Iterator[Entry]:
    for line in Path(path).read_text().splitlines():
        fields = json.loads(line)
        backward = fields.get("backward", fields["kind"] != "op")
        yield Entry(
            fields["kind"], fields["name"], fields["sample"], backward, bool(fields.get("training"))
        )


def step_of(entry: Entry, device: str) -> Step | None:
    """The sample as a function without arguments; None if this release has no such sample."""
    database = databases()[entry.kind].get(entry.name)
    make = {"op": _op, "module": _module, "optim": _optimizer}[entry.kind]
    return None if database is None else make(database, entry, device)


def _tensors(values: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _differentiate(outputs: Any, inputs: Any) -> None:
    outputs = [tensor for tensor in _tensors(outputs) if tensor.requires_grad]
    inputs = [tensor for tensor in _tensors(inputs) if tensor.requires_grad]
    if outputs and inputs:
        ones = [torch.ones_like(tensor) for tensor in outputs]
        torch.autograd.grad(outputs, inputs, ones, allow_unused=True)


def _op(op: Any, entry: Entry, device: str) -> Step | None:
    dtype = next((dtype for dtype in DTYPES if dtype in op.supported_dtypes("cpu")), None)
    if dtype is None:  # only on a GPU
        return None
    samples = op.sample_inputs(device, dtype, requires_grad=entry.backward)
    sample = next(itertools.islice(samples, entry.sample, None), None)
    if sample is None:
        return None

    def run() -> None:
        outputs = op(sample.input, *sample.args, **sample.kwargs)
        if entry.backward:
            _differentiate(outputs, (sample.input, sample.args, sample.kwargs))

    return run


def _module(info: Any, entry: Entry, device: str) -> Step | None:
    samples = info.module_inputs_func(
        info, device=device, dtype=torch.float32, requires_grad=True, training=entry.training
    )
    sample = next(itertools.islice(samples, entry.sample, None), None)
    if sample is None:
        return None
    made, given = sample.constructor_input, sample.forward_input
    module = info.module_cls(*made.args, **made.kwargs).to(device).train(entry.training)

    def run() -> None:
        outputs = module(*given.args, **given.kwargs)
        if torch.is_grad_enabled():
            _differentiate(outputs, (given.args, given.kwargs, list(module.parameters())))

    return run


def _optimizer(info: Any, entry: Entry, device: str) -> Step | None:
    samples = info.optim_inputs_func(device)
    sample = next(itertools.islice(samples, entry.sample, None), None)
    if sample is None:
        return None
    model = torch.nn.Linear(8, 8).to(device)
    # On a GPU foreach is the default.
    options = {"foreach": False} | sample.kwargs
    optimizer = info.optim_cls(model.parameters(), **options)
    x = torch.randn(4, 8, device=device)

    def run() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return run


def profiled(step: Step) -> tuple[Op, ...]:
    """The ops that PyTorch's profiler sees."""
    torch.manual_seed(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    events = profile.events() or []
    return _ops([event for event in events if event.cpu_parent is None])


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
    """What differs, by the way of watching. Raises what the step raises."""
    observed: list[str] = []

    def observe(op: Any, args: Any, kwargs: Any, run: Any, _caller: Any) -> Any:
        name = op.name().partition(".")[0]
        if name in op_names():
            observed.append(name)
        return run(*args, **kwargs)

    torch.manual_seed(0)
    step, other = step_of(entry, "cpu"), step_of(entry, "cpu")
    if step is None or other is None:
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
        torch.manual_seed(0)
        step = step_of(entry, "cuda")
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
        grad_modes = ("grad",) if entry.backward and entry.kind != "module" else GRAD_MODES
        for grad_mode in grad_modes:
            try:
                results = judge(entry, grad_mode)
            except Exception:
                line = traceback.format_exc(limit=-3).strip().replace("\n", " / ")
                results = {"error": line[-300:]}
            outcomes += [(entry, grad_mode, way, what) for way, what in results.items()]
    return outcomes


def _forked(entries: list[Entry]) -> list[Any]:
    """The outcomes of a forked process; those of a process that died are errors."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            with os.fdopen(writer, "w") as pipe:
                json.dump(_batch(entries), pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else [[entry, "", "died", "yes"] for entry in entries]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["KINETO_LOG_LEVEL"] = "99"
    entries = list(listed_entries(options.entries) if options.entries else all_entries())
    entries = [entry for entry in entries if options.only in entry.name][:: options.every]
    compared: collections.Counter[str] = collections.Counter()
    differing: collections.Counter[str] = collections.Counter()
    expected: collections.Counter[str] = collections.Counter()
    for start in range(0, len(entries), BATCH):
        for fields, grad_mode, way, what in _forked(entries[start : start + BATCH]):
            entry = Entry(*fields)
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
