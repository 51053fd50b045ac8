import torch
from torch import nn


def groups_are_repeated_to_a_known_size(device):
    """repeat_interleave with counts of the device, but the size of its output is given."""
    net = nn.Linear(5, 5).to(device)
    counts = torch.tensor([2, 4, 1, 3], device=device)

    def loss(x):
        prompts = net(x)
        samples = torch.repeat_interleave(prompts, counts, dim=0, output_size=10)
        owner = torch.repeat_interleave(torch.arange(4, device=device), counts, output_size=10)
        rewards = samples.tanh().sum(-1)
        mean = torch.zeros(4, device=device).index_add_(0, owner, rewards) / counts
        return (rewards - mean[owner]).square().mean()

    return loss, (torch.randn(4, 5, device=device),)
