"""Modules and optimizers, or objects that have modules, whose parameters a graph reads."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from cgtool.detectors.script.frozen import Frozen, bound_by
from cgtool.detectors.script.host_states import MOST_ITEMS, State
from cgtool.findings import code
from cgtool.model.capture import Frames
from cgtool.model.finding import Code
from cgtool.observe.frames import is_internal_file
from cgtool.observe.host_reads import NameIn, Watched
from cgtool.observe.lookup import MISSING, Identity, attribute_of, resolve
from cgtool.observe.script.names import Root, Stack
from cgtool.observe.tensors import key_of, keys_in, tensors_in
from cgtool.observe.uses import Use

METADATA_ADDRESS_CHANGED = code("metadata-address-changed")
PARAMETER_REBOUND = code("parameter-rebound")
PYTHON_SCALAR_FROZEN = code("python-scalar-frozen")


_KEEP_OPTIMIZER = (
    "keep the optimizer, and reset its state in place (`zero_()` of each tensor; a learning rate in"
    " a tensor by `fill_()`), or capture again with the new one"
)


@dataclass
class Owner:
    """A module, or an object that has modules, whose parameters or buffers a graph reads, or the
    optimizer that steps in it, under a name that the captured code reads."""

    kind: str
    state: State
    tensors: frozenset[int]
    """The keys of the storages of those that the graph reads."""
    numbers: tuple[dict[str, Any], ...]
    """Of an optimizer."""
    subject: Hashable
    """As of ``Frozen``."""

    @property
    def meaning(self) -> Code:
        if self.kind != "optimizer":
            return PARAMETER_REBOUND
        return METADATA_ADDRESS_CHANGED if self.tensors else PYTHON_SCALAR_FROZEN

    def frozen(self, use: Use, root: Root, read_at: Frames, local_to: int | None) -> Frozen:
        kept, fix = "reads the parameters of the old one", None
        if self.kind == "optimizer":
            kept, fix = "takes the steps of the old one", _KEEP_OPTIMIZER

        def read(stack: Stack) -> Any:
            now = resolve(root(stack), use.steps)
            if not _tensors_of(now) and not isinstance(now, Optimizer):
                return MISSING
            state = State("owner", (Identity(now),))
            return self.state if self._is_same_for_the_graph(now) else state

        return Frozen(
            self.meaning,
            f"`{use.text}` is a different {self.kind} than at the capture; the replay still {kept}",
            self.state,
            read,
            read_at,
            "",
            *bound_by(use, local_to),
            subject=self.subject,
            tensors=self.tensors,
            fix=fix,
        )

    def _is_same_for_the_graph(self, now: Any) -> bool:
        """What wraps a module has its parameters; another optimizer may be like the old one."""
        numbers = _numbers_of_optimizer(now)
        return (
            self.tensors <= _tensors_of(now)
            and len(numbers) >= len(self.numbers)
            and all(
                own.items() <= other.items()
                for own, other in zip(self.numbers, numbers, strict=False)
            )
        )

    def of_another(
        self,
        use: Use,
        own: Callable[[], Any],
        another: Callable[[Any, Stack], Any],
        kind: str,
        now_at: Callable[[], Frames],
    ) -> Frozen:
        """The same in a call for another object than its ``own``."""

        def read(stack: Stack) -> Any:
            other = another(own(), stack)
            tensors = self.tensors if other is None else _tensors_of(resolve(other, use.steps))
            return self.state if not tensors or self.tensors <= tensors else "another"

        different = f", whose `{use.text}` is a different {self.kind}" if use.steps else ""
        return Frozen(
            PARAMETER_REBOUND,
            f"the graph was captured for another `{kind}`{different}: the replay computes with the "
            "parameters of that one",
            self.state,
            read,
            (),
            changed_at=now_at,
            chooses_graph=False,
            fix="give each model its own graphs: keep them with it, not in a dictionary that all"
            " share, or make the model a part of the key",
        )


def owner_of(
    watched: Watched,
    value: Any,
    external: Collection[int],
    parts: Collection[int],
    *,
    is_own: bool = False,
) -> Owner | None:
    """What captured code reads by this name, if it owns parameters that the graph reads, and
    another one there were a mistake. ``is_own``: whatever the name means elsewhere."""
    use = watched.use
    # The lines around a capture may give the name to the next model.
    is_reused = not is_own and not use.steps and isinstance(watched.root, NameIn)
    if use.written or use.tested or is_reused or is_internal_file(watched.frame.file):
        return None
    tensors, numbers = _tensors_of(value) & frozenset(external), _numbers_of_optimizer(value)
    if not tensors and not (numbers and _steps_in(value, external)):
        return None
    if use.steps and id(resolve(watched.root(), use.steps[:-1])) in parts:
        return None
    kinds = {torch.nn.Module: "module", Optimizer: "optimizer"}
    kind = next((name for kind, name in kinds.items() if isinstance(value, kind)), "object")
    subject = ("owner", watched.key or (watched.frame, use.text))
    return Owner(kind, State("owner", (Identity(value),)), tensors, numbers, subject)


def _steps_in(optimizer: Optimizer, external: Collection[int]) -> bool:
    """Whether a graph uses a parameter of an optimizer."""
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return any(key_of(parameter) in external for parameter in parameters)


def _numbers_of_optimizer(value: Any) -> tuple[dict[str, Any], ...]:
    """The hyperparameters of each group of an optimizer, and its class; () of anything else."""
    if not isinstance(value, Optimizer):
        return ()
    return tuple(
        {"class": type(value)}
        | {key: each for key, each in group.items() if type(each) in (bool, int, float, tuple)}
        for group in value.param_groups
    )


def _tensors_of(value: Any) -> frozenset[int]:
    """The keys of the parameters and buffers of a module, or of the modules that are attributes of
    an object; of the state of an optimizer."""
    if isinstance(value, torch.nn.Module):
        return keys_in(value)
    if isinstance(value, Optimizer):
        rates = [
            [each for key, each in group.items() if key != "params"] for group in value.param_groups
        ]
        return frozenset(filter(None, map(key_of, tensors_in((list(value.state.values()), rates)))))
    if isinstance(value, types.ModuleType | type | torch.Tensor):
        return frozenset()
    fields = attribute_of(value, "__dict__")
    parts = fields.values() if isinstance(fields, dict) else ()
    modules = [part for part in list(parts) if isinstance(part, torch.nn.Module)]
    return frozenset(itertools.chain.from_iterable(map(keys_in, modules)))


def tensors_of_items(container: Any) -> frozenset[int]:
    """The keys of what the modules and optimizers in a container own."""
    if isinstance(container, torch.nn.Module):
        return keys_in(container)
    items = list(container.values() if isinstance(container, dict) else container)[:MOST_ITEMS]
    owners = [item for item in items if isinstance(item, torch.nn.Module | Optimizer)]
    return frozenset(itertools.chain.from_iterable(map(_tensors_of, owners)))
