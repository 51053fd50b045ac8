"""``--seed``: every random number generator that the user's code may draw from."""

from __future__ import annotations

import random
import sys

import torch

from cgtool.model.failure import usage


def seed_all(seed: int | None) -> None:
    """Seed Python, NumPy when it is loaded, and PyTorch on every device; None leaves them alone.

    Raises CgtoolError (exit 2) for a number that is no seed.
    """
    if seed is None:
        return
    try:
        torch.manual_seed(seed)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise usage(f"--seed {seed} is no seed that torch.manual_seed takes") from error
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
