"""PyTorch's own databases of operators, modules and optimizers, as functions without arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)


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
    """The text of ``described`` for the sample: the order of samples changes between releases."""

    @property
    def title(self) -> str:
        traits = ("backward", "training", "capturable")
        named = [trait for trait in traits if getattr(self, trait)]
        return " ".join((f"{self.name}[{self.sample}]", *named))


Step = Callable[[], Any]


@cache
def databases() -> dict[str, dict[str, Any]]:
    """By kind and name."""
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


def _with_backward(forward: Step, inputs: Iterable[torch.Tensor]) -> Step:
    def forward_and_backward():
        outputs = forward()
        return outputs, _gradients(outputs, inputs)

    return forward_and_backward


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


def _no_parts(_sample: Any) -> tuple[Any, ...]:
    """The order of these samples has not changed."""
    return ()


def _op_parts(sample: Any) -> tuple[Any, ...]:
    return sample.input, sample.args, sample.kwargs


def _op_step(entry: Entry, device: str) -> Step:
    op = databases()["op"][entry.name]
    dtype = _chosen_dtype(op)
    if dtype is None:
        raise NotInThisRelease("it has none of the types")
    samples = op.sample_inputs(device, dtype, requires_grad=entry.backward)
    sample = _chosen(samples, entry, _op_parts)
    inputs = _tensors((sample.input, sample.args, sample.kwargs))

    def forward():
        return op(sample.input, *sample.args, **sample.kwargs)

    return _with_backward(forward, inputs) if entry.backward else forward


def with_inputs(entry: Entry) -> Entry:
    """The entry with what its inputs are, so that another release finds them."""
    if entry.kind != "op":
        return entry
    op = databases()["op"][entry.name]
    samples = op.sample_inputs("cuda", _chosen_dtype(op), requires_grad=entry.backward)
    return msgspec.structs.replace(
        entry, inputs=described(*_op_parts(_chosen(samples, entry, _op_parts)))
    )


def _module_step(entry: Entry, device: str, backward: bool) -> Step:
    info = databases()["module"][entry.name]
    samples = info.module_inputs_func(
        info, device=device, dtype=torch.float32, requires_grad=backward, training=entry.training
    )
    sample = _chosen(samples, entry, _no_parts)
    made = sample.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).to(device).train(bool(entry.training))
    given = sample.forward_input

    def forward():
        return module(*given.args, **given.kwargs)

    inputs = [*_tensors((given.args, given.kwargs)), *module.parameters()]
    return _with_backward(forward, inputs) if backward else forward


def _optim_step(entry: Entry, device: str, options: dict[str, Any]) -> Step:
    info = databases()["optim"][entry.name]
    options = options | _chosen(info.optim_inputs_func(device), entry, _no_parts).kwargs
    if entry.capturable:
        options["capturable"] = True
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = info.optim_cls(model.parameters(), **options)
    x = torch.randn(4, 8, device=device)

    def train():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return train


def build(
    entry: Entry, device: str = "cuda", *, forward: bool = False, **optimizer_options: Any
) -> Step:
    """The function of an entry; ``forward``: without its backward. Raises NotInThisRelease."""
    torch.manual_seed(0)
    if entry.name not in databases()[entry.kind]:
        raise NotInThisRelease("there is no such entry")
    if entry.kind == "op":
        if forward:
            entry = msgspec.structs.replace(entry, backward=False)
        return _op_step(entry, device)
    if entry.kind == "module":
        return _module_step(entry, device, not forward)
    return _optim_step(entry, device, optimizer_options)


def under(mode: str | None, step: Step) -> Step:
    """The step under a grad mode of ``torch``."""
    if mode is None:
        return step

    def run():
        with getattr(torch, mode)():
            return step()

    return run


def all_entries() -> Iterator[Entry]:
    """The first three samples of each member of the databases."""
    for kind, members in databases().items():
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


def listed_entries(path: Path) -> list[Entry]:
    return [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines()]
