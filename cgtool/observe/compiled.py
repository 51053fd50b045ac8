"""Code of ``torch.compile`` under a recorder."""

from __future__ import annotations

import contextlib

import torch

from cgtool.torch_compat.private import dynamo_is_loaded


def left_alone() -> contextlib.AbstractContextManager[object]:
    """While entered, ``torch.compile`` compiles nothing anew: code whose guards fail runs eagerly.

    A recorder's dispatch mode and module hooks fail those guards; compiling for them would trace
    the recorder itself, and what is captured next would no longer be the user's compiled code.
    """
    set_stance = getattr(torch.compiler, "set_stance", None)
    # Asking would import torch._dynamo, for a second, where nothing was compiled.
    if set_stance is None or not dynamo_is_loaded():
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[object] = set_stance("eager_on_recompile")
    return stance
