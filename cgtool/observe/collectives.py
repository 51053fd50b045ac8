"""The collectives of a capture: what each hands to its communicator, by the op that calls it."""

from __future__ import annotations

from typing import Any

import torch

from cgtool.model.ledger import Collective, Communicator
from cgtool.observe.tensors import listed_tensors, on_host
from cgtool.torch_compat import private
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import schema_of

# A name begins with the first of these that it can.
_KINDS = (
    "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "reduce", "broadcast", "gather",
    "scatter", "barrier",
)  # fmt: skip


def _kind_of(name: str) -> str:
    """``all_reduce`` of ``c10d::allreduce_``; empty for what is sent from rank to rank."""
    stem = name.rpartition("::")[2].replace("_", "")
    return next((kind for kind in _KINDS if stem.startswith(kind.replace("_", ""))), "")


def given(op: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The arguments of an op by their names, as far as they differ from their defaults."""
    names = [argument.name for argument in schema_of(op).arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def collective_of(op: Any, args: Args, kwargs: Kwargs) -> tuple[Collective, int] | None:
    """What an op of ``c10d`` is about to hand to its communicator, and its size in bytes; None if
    it is not a collective, or not one on the GPU."""
    kind, named = _kind_of(schema_of(op).name), given(op, args, kwargs)
    tensors = listed_tensors(args)
    if not kind or all(map(on_host, tensors)):
        return None
    group = private.group_of(named["process_group"])
    sizes = [
        sum(tensor.numel() * tensor.element_size() for tensor in listed_tensors((value,)))
        for value in named.values()
    ]
    size = max(sizes)
    if kind in ("gather", "scatter"):  # only the root has the whole
        size = min(filter(None, sizes))
    elif kind in ("all_to_all", "barrier"):  # each rank may send as much as it wants, or nothing
        size = 0
    collective = Collective(
        kind,
        Communicator(str(group.group_name), _ranks_of(group)),
        "" if kind == "barrier" else str(tensors[0].dtype).removeprefix("torch."),
        named.get("root_rank"),
        named.get("async_op") is False,
    )
    return collective, size


def _ranks_of(group: Any) -> tuple[int, ...]:
    try:
        return tuple(torch.distributed.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):  # a group that PyTorch did not register
        return ()


def rank_of_process() -> tuple[int, int] | None:
    """The rank of this process and the number of all, if ``torch.distributed`` knows them."""
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
