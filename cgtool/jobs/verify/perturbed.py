"""What another order of summation may do: eager from inputs and parameters that are changed in
their last bit.

A replay may use other kernels than eager (another matrix-product algorithm, because the workspace
differs), which round otherwise. How far that carries depends on the workload, so it is measured:
the results of eager move as far when its inputs move by one rounding.
"""

from __future__ import annotations

import torch

from cgtool.jobs.verify import replayable
from cgtool.jobs.verify.replayable import Replayable
from cgtool.jobs.verify.runs import Trial, TrialRunner
from cgtool.jobs.verify.state import raw

RUNS = 3


def perturbed(target: Replayable, stage: TrialRunner, trial: Trial) -> list[Trial]:
    """The trial with every floating-point input and parameter moved by at most one rounding."""
    generator = torch.Generator()
    generator.manual_seed(1)
    tensors = {
        id(tensor): tensor
        for _, tensor in (*stage.inputs, *replayable.parameters(target.workload))
        if tensor.is_floating_point()
    }
    found = []
    for _ in range(RUNS):
        writes = [
            (tensor, _moved(value, generator))
            for tensor in tensors.values()
            if (value := stage.value_at_start(tensor, trial)) is not None
        ]
        others = [one for one in trial.writes if id(one[0]) not in tensors]
        found.append(Trial(trial.name, trial.iterations, [*others, *writes], order=trial.order))
    return found


def _moved(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    with raw():
        signs = torch.randint(-1, 2, values.shape, generator=generator).to(values.device)
        step = torch.finfo(values.dtype).eps
        wide = values.to(torch.float64)
        return (wide * (1 + step * signs)).to(values.dtype)
