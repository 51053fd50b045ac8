"""The collectives of a capture: what each hands to its communicator, by the op that calls it."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch

from cgtool.observe.tensors import listed_tensors, on_host
from cgtool.torch_compat import private
from cgtool.torch_compat.dispatch_keys import Args, Kwargs
from cgtool.torch_compat.private import schema_of

# By name of the op: the kind, and the argument that is as large on every rank.
_OPS = {
    "c10d::allreduce_": ("all_reduce", "tensors"),
    "c10d::allreduce_coalesced_": ("all_reduce", "tensors"),
    "c10d::broadcast_": ("broadcast", "tensors"),
    "c10d::reduce_": ("reduce", "tensors"),
    "c10d::allgather_": ("all_gather", "output_tensors"),
    "c10d::allgather_coalesced_": ("all_gather", "output_lists"),
    "c10d::_allgather_base_": ("all_gather", "output_tensor"),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", "outputs"),
    "c10d::reduce_scatter_": ("reduce_scatter", "input_tensors"),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", "input_tensor"),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs"),
    "c10d::alltoall_": ("all_to_all", "input_tensors"),
    "c10d::alltoall_base_": ("all_to_all", "input"),
    "c10d::gather_": ("gather", "input_tensors"),
    "c10d::scatter_": ("scatter", "output_tensors"),
    "c10d::barrier": ("barrier", ""),
    "c10d::send": ("send", "tensors"),
    "c10d::recv_": ("recv", "tensors"),
    "c10d::recv_any_source_": ("recv", "tensors"),
    "_c10d_functional::all_reduce": ("all_reduce", "input"),
    "_c10d_functional::all_reduce_": ("all_reduce", "input"),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", "inputs"),
    "_c10d_functional::all_reduce_coalesced_": ("all_reduce", "inputs"),
    "_c10d_functional::broadcast": ("broadcast", "input"),
    "_c10d_functional::broadcast_": ("broadcast", "input"),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", "input"),
    "_c10d_functional::all_gather_into_tensor_out": ("all_gather", "input"),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", "inputs"),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", "input"),
    "_c10d_functional::reduce_scatter_tensor_out": ("reduce_scatter", "input"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", "inputs"),
    "_c10d_functional::all_to_all_single": ("all_to_all", "input"),
}


def known_ops() -> list[str]:
    """The names of the ops of this PyTorch that are collectives."""
    known: list[str] = []
    for name in _OPS:
        with contextlib.suppress(RuntimeError):  # there is none of this name
            private.schema(name, "")
            known.append(name)
    return known


class CollectiveCall(NamedTuple):
    """One collective, as an op calls it."""

    kind: str
    group: str
    """PyTorch's name of the process group."""
    ranks: tuple[int, ...]
    """The global ranks of the group; empty if they are not known."""
    dtype: str
    bytes: int
    peer: int | None
    """The rank in the group that it sends to or receives from, or that is its root."""
    waits: bool
    """What follows on the current stream waits for it."""


def is_collective(op: Any) -> bool:
    """Whether an op is a collective."""
    return schema_of(op).name in _OPS


def given(op: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The arguments of an op by their names, as far as they differ from their defaults."""
    names = [argument.name for argument in schema_of(op).arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def collective_of(op: Any, args: Args, kwargs: Kwargs) -> CollectiveCall | None:
    """What an op is about to hand to its communicator; None if it is no collective of the GPU."""
    schema = schema_of(op)
    kind, largest = _OPS.get(schema.name, ("", ""))
    if not kind or all(map(on_host, listed_tensors(args))):
        return None
    named = given(op, args, kwargs)
    tensors = listed_tensors((named.get(largest),))
    group = named.get("process_group")
    if group is not None:
        group = private.group_of(group)
    else:
        name = named["group_name"]
        group = private.named_group(name) if isinstance(name, str) else private.group_of(name)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if kind == "all_gather" and largest.startswith("input"):
        size *= named["group_size"]
    peers = (named.get(name) for name in ("dst", "src", "root_rank"))
    return CollectiveCall(
        kind,
        str(group.group_name),
        _ranks_of(group),
        str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
        size,
        next((peer for peer in peers if isinstance(peer, int)), None),
        named.get("async_op") is False,
    )


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
