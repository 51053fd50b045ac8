"""RLHF: the running moments of the rewards are tensors that the graph itself moves."""

import torch
from torch import nn


class RunningMoments:
    def __init__(self, device):
        self.mean = torch.zeros((), device=device)
        self.square = torch.ones((), device=device)
        self.count = torch.zeros((), device=device)

    def whiten(self, rewards):
        self.count += 1
        weight = 1.0 / self.count.clamp(max=20.0)
        self.mean.lerp_(rewards.mean(), weight)
        self.square.lerp_(rewards.square().mean(), weight)
        variance = (self.square - self.mean.square()).clamp(min=1e-4)
        return (rewards - self.mean) * variance.rsqrt()

    def reset(self):
        self.count.zero_()


device = torch.device("cuda")
moments = RunningMoments(device)
reward_model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1)).to(device)
reward_model.requires_grad_(False)
features = torch.randn(12, 8, device=device)

moments.whiten(reward_model(features).squeeze(-1))
moments.reset()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    whitened = moments.whiten(reward_model(features).squeeze(-1))

for epoch in range(2):
    moments.reset()
    for _ in range(3):
        features.copy_(torch.randn(12, 8) * (1 + epoch))
        graph.replay()
        print(f"{whitened.std().item():.3f} after {int(moments.count)} batches")
    state = {name: value.item() for name, value in vars(moments).items()}
    print(epoch, state)
