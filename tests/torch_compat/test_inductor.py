"""What a Triton kernel of `torch.compile` writes, and what it may read."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from cgtool.torch_compat.inductor import read_arguments, written_arguments


def test_a_kernel_reads_what_it_changes_but_not_what_it_only_writes():
    names = ("in_ptr0", "in_ptr1", "in_out_ptr0", "out_ptr0", "xnumel")
    kernel = SimpleNamespace(fn=SimpleNamespace(arg_names=names), mutated_arg_names=["in_ptr1"])
    args = (*(torch.ones(2) for _ in names[:-1]), 2)
    written = [name for name, _ in written_arguments(kernel, args)]
    assert written == ["in_ptr1", "in_out_ptr0", "out_ptr0"]
    assert [name for name, _ in read_arguments(kernel, args)] == list(names[:3])
