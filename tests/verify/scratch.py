"""An entry point that returns memory which nothing writes, as some ops of PyTorch do."""

import torch

FREE = torch.arange(3)
"""The contents of free memory."""


@torch.library.custom_op("cgtool_tests::with_scratch", mutates_args=())
def with_scratch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, FREE.clone()


def scratch(device):
    return lambda x: with_scratch(x), (torch.randn(4, device=device),)
