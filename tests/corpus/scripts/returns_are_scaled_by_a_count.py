"""Rewards are divided by the running deviation of the returns, whose count is a Python number."""

import torch


class RewardScaler:
    def __init__(self, environments, discount=0.99):
        self.discount = discount
        self.returns = torch.zeros(environments, device="cuda")
        self.mean = torch.zeros((), device="cuda")
        self.squares = torch.zeros((), device="cuda")
        self.count = 0

    def __call__(self, rewards, done):
        self.returns.mul_(self.discount).add_(rewards)
        self.count += len(rewards)  # guilty: a replay does not count
        before = self.returns - self.mean
        self.mean.add_(before.sum() / self.count)  # guilty: the count of the capture
        self.squares.add_((before * (self.returns - self.mean)).sum())
        self.returns.mul_(~done)
        deviation = (self.squares / self.count).sqrt()  # guilty: the count of the capture
        return rewards / (deviation + 1e-6)


torch.manual_seed(13)
scaler = RewardScaler(16)
rewards, done = torch.zeros(16, device="cuda"), torch.zeros(16, dtype=torch.bool, device="cuda")
for _ in range(2):
    scaler(rewards.normal_(), done)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scaled = scaler(rewards, done)

for _ in range(20):
    rewards.copy_(5 + 2 * torch.randn(16, device="cuda"))
    done.copy_(torch.rand(16, device="cuda") < 0.1)
    graph.replay()
print(scaled.mean().item(), scaler.squares.item())
