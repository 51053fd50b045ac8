import math

import torch
from torch import nn


def momentum_of_the_teacher_rises(device):
    student, teacher = nn.Linear(8, 4, device=device), nn.Linear(8, 4, device=device)
    x = torch.randn(16, 8, device=device)
    step_number = [0]

    def step():
        step_number[0] += 1  # <- cpu-state-step-counter
        momentum = 1 - 0.5 * (math.cos(math.pi * min(step_number[0], 8) / 8) + 1) / 2
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.mul_(momentum).add_(new, alpha=1 - momentum)  # <- cpu-state-step-counter
        return teacher(x).detach()

    return step
