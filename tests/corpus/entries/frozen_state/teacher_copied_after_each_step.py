import copy

import torch
from torch import nn
from torch.nn import functional


def _net(device: str, inputs: int = 12, outputs: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs)).to(device)


def _batch(device: str, n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 12, device=device), torch.randint(5, (n,), device=device)


def teacher_copied_after_each_step(device):
    student, (x, _) = _net(device), _batch(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), 0.05)

    def step():
        nonlocal teacher
        opt.zero_grad()
        target = teacher(x.roll(1, 0)).softmax(1)  # <- metadata-address-changed
        loss = functional.cross_entropy(student(x), target)
        loss.backward()
        opt.step()
        teacher = copy.deepcopy(student).requires_grad_(False)  # <- metadata-address-changed
        return loss.detach()

    return step
