import collections

import torch


class NStepReturns:
    def __init__(self, device):
        self.rewards = collections.deque(
            (torch.zeros(4, device=device) for _ in range(3)), maxlen=3
        )

    def __call__(self, reward, bootstrap):
        # The deque holds other tensors after each call. A replay reads those that were in it at
        # capture; rewards of later calls never reach it. Shown by the second call.
        self.rewards.append(reward.clone())  # <- metadata-address-changed
        total = bootstrap * 0.99**3
        for power, past in enumerate(self.rewards):  # <- metadata-address-changed
            total = total + past * 0.99**power  # <- metadata-address-changed
        return total


def returns_of_a_deque(device):
    return NStepReturns(device), (torch.randn(4, device=device), torch.randn(4, device=device))
