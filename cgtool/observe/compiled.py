"""Code of ``torch.compile`` under a recorder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from cgtool.torch_compat.patches import Patches
from cgtool.torch_compat.private import dynamo_is_loaded, load_dynamo


@contextlib.contextmanager
def left_alone(first_use: bool = False) -> Iterator[None]:
    """While entered, ``torch.compile`` compiles nothing anew: code whose guards fail runs eagerly.

    A recorder and its module hooks fail those guards; compiling for them would trace the recorder
    itself, and what is captured next would no longer be the user's compiled code. ``first_use``
    holds for code that uses ``torch.compile`` for the first time here, too.
    """
    set_stance = getattr(torch.compiler, "set_stance", None)
    with Patches() as patches:
        # Importing torch._dynamo takes more than a second: not where nothing was compiled.
        if set_stance is not None and dynamo_is_loaded():
            patches.enter_context(set_stance("eager_on_recompile"))
        elif set_stance is not None and first_use:

            def compile_eagerly(original: Any, *args: Any, **kwargs: Any) -> Any:
                if not dynamo_is_loaded():
                    load_dynamo()
                    patches.enter_context(set_stance("eager_on_recompile"))
                return original(*args, **kwargs)

            patches.wrap(torch, "compile", compile_eagerly)
        yield
