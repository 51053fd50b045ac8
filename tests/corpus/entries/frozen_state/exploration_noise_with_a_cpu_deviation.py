import torch
from torch import nn


def exploration_noise_with_a_cpu_deviation(device):
    policy = nn.Linear(6, 2).to(device)
    deviation = torch.tensor(0.5)

    def act(observation):
        with torch.no_grad():
            action = policy(observation).tanh()
            noisy = action + torch.randn_like(action) * deviation  # <- cpu-work-in-region
            deviation.mul_(0.99)  # <- cpu-scalar-tensor-operand
        return noisy

    return act, (torch.randn(5, 6, device=device),)
