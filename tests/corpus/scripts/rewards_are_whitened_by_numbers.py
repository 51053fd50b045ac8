"""RLHF: rewards are whitened by a running mean that the trainer keeps in Python numbers."""

import torch
from torch import nn


class RunningMoments:
    def __init__(self):
        self.mean, self.std, self.count = 0.0, 1.0, 1e-4

    def update(self, rewards):
        batch = rewards.numel()
        delta = rewards.mean().item() - self.mean
        self.mean += delta * batch / (self.count + batch)  # guilty: the graph has the old number
        self.std = 0.9 * self.std + 0.1 * rewards.std().item()  # guilty: as above
        self.count += batch


class RewardModel(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, hidden), nn.SiLU())
        self.value = nn.Linear(hidden, 1)

    def forward(self, x, lengths):
        values = self.value(self.body(x)).squeeze(-1)
        return values.gather(1, (lengths - 1).unsqueeze(1)).squeeze(1)


moments = RunningMoments()
model = RewardModel().cuda().requires_grad_(False)
answers = torch.randn(4, 6, 8, device="cuda")
lengths = torch.full((4,), 6, device="cuda")


def scored():
    raw = model(answers, lengths)
    return raw, (raw - moments.mean) / (moments.std + 1e-6)  # guilty: numbers of the capture


scored()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    raw, whitened = scored()

for step in range(4):
    answers.copy_(torch.randn(4, 6, 8) + step)
    lengths.copy_(torch.randint(1, 7, (4,)))
    graph.replay()
    print(step, whitened.mean().item(), whitened.max().item())
    moments.update(raw)
