import torch
from torch import nn
from torch.nn import functional


class CapacityRouter(nn.Module):
    """Experts of a fixed capacity, as in Switch transformers."""

    def __init__(self, width=8, experts=4, capacity=6):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.w1 = nn.Parameter(torch.randn(experts, width, 16) * 0.2)
        self.w2 = nn.Parameter(torch.randn(experts, 16, width) * 0.2)
        self.experts, self.capacity = experts, capacity

    def forward(self, x):
        probabilities = self.gate(x).softmax(-1)
        weight, expert = probabilities.max(-1)
        chosen = functional.one_hot(expert, self.experts)
        place = (chosen.cumsum(0) - 1).gather(1, expert[:, None]).squeeze(1)
        kept = place < self.capacity
        slot = expert * self.capacity + place.clamp(max=self.capacity - 1)
        slot = torch.where(kept, slot, self.experts * self.capacity)
        buffer = x.new_zeros(self.experts * self.capacity + 1, x.shape[1]).index_add(0, slot, x)
        inner = buffer[:-1].unflatten(0, (self.experts, self.capacity))
        out = torch.bmm(functional.silu(torch.bmm(inner, self.w1)), self.w2).flatten(0, 1)
        out = functional.pad(out, (0, 0, 0, 1))[slot]
        balance = self.experts * (chosen.float().mean(0) * probabilities.mean(0)).sum()
        return out * (weight * kept)[:, None], balance


def experts_of_one_capacity(device):
    torch.manual_seed(0)
    return CapacityRouter().to(device), (torch.randn(16, 8, device=device),)
