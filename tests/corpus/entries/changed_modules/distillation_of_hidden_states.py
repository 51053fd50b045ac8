from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _mlp(device, inputs=8, hidden=16, outputs=8):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs)).to(
        device
    )


def distillation_of_hidden_states(device):
    """Hooks collect the hidden states of teacher and student; each step starts with none."""
    teacher, student = _mlp(device).requires_grad_(False), _mlp(device)
    seen = {"teacher": [], "student": []}

    def collect(name):
        return lambda module, inputs, output: seen[name].append(output)

    teacher[1].register_forward_hook(collect("teacher"))
    student[1].register_forward_hook(collect("student"))
    project = nn.Linear(16, 16, bias=False).to(device)

    def step(x):
        for states in seen.values():
            states.clear()
        with torch.no_grad():
            soft = teacher(x).div(2.0).softmax(-1)
        logits = student(x)
        loss = functional.kl_div(logits.div(2.0).log_softmax(-1), soft, reduction="batchmean")
        pairs = zip(seen["student"], seen["teacher"], strict=True)
        return 4.0 * loss + sum(functional.mse_loss(project(s), t) for s, t in pairs)

    return step, (torch.randn(4, 8, device=device),)
