from __future__ import annotations

from collections.abc import Callable

import torch


def backtracking_line_search(device: str) -> Callable[[], torch.Tensor]:
    point = torch.randn(12, device=device)
    matrix = torch.randn(12, 12, device=device)

    def objective(x: torch.Tensor) -> torch.Tensor:
        return (matrix @ x).square().sum() + x.abs().sum()

    slope = torch.func.grad_and_value(objective)

    def step() -> torch.Tensor:
        direction, value = slope(point)
        length, squared = 1.0, direction.square().sum()
        while (
            objective(point - length * direction) > value - length * squared / 2
        ):  # <- sync-truth-value
            length *= 0.5
        point.sub_(direction, alpha=length)
        return value

    return step
