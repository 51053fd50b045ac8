"""Options that depend on the workload, settled once for both backends."""

from __future__ import annotations

import torch

from cgtool.model.options import CaptureOptions
from cgtool.program.workload import Workload

WARMUP_ITERS = 3
DDP_WARMUP_ITERS = 11
"""DistributedDataParallel rebuilds its buckets and settles in its first ten iterations
(documentation of ``torch.cuda.make_graphed_callables``)."""


def warmup_iters(workload: Workload, options: CaptureOptions) -> tuple[int, str | None]:
    """How many warm-up iterations, and the note that the reader needs if it is not the usual."""
    if options.warmup_iters is not None:
        return options.warmup_iters, None
    wrapped = any(
        isinstance(module, torch.nn.parallel.DistributedDataParallel)
        for part in workload.parts
        for root in part.modules.values()
        for module in root.modules()
    )
    if wrapped:
        return DDP_WARMUP_ITERS, (
            f"{DDP_WARMUP_ITERS} warm-up iterations, because the workload runs "
            "DistributedDataParallel"
        )
    return WARMUP_ITERS, None
