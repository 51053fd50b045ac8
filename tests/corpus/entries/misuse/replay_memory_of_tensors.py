import torch
from torch import nn


def replay_memory_of_tensors(device):
    memory = torch.randn(128, 4, device=device)
    net = nn.Linear(4, 1, device=device)

    def loss():
        index = torch.randint(128, (16,), device=device)
        return net(memory[index]).square().mean()

    return loss
