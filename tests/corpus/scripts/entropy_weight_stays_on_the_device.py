"""Soft actor-critic: both updates are one graph; the entropy weight is read for the log only."""

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.actor = nn.Linear(8, 4).cuda()
        self.critic = nn.Linear(8, 4).cuda().requires_grad_(False)
        self.log_alpha = torch.zeros((), device="cuda", requires_grad=True)
        self.alpha = 1.0
        self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=0.05)
        self.alpha_optimizer = torch.optim.SGD([self.log_alpha], lr=0.5)

    def update(self, observations, target=1.0):
        self.actor_optimizer.zero_grad()
        log_p = self.actor(observations).log_softmax(-1)
        q = self.critic(observations)
        alpha = self.log_alpha.detach().exp()
        loss = (log_p.exp() * (alpha * log_p - q)).sum(-1).mean()
        loss.backward()
        self.actor_optimizer.step()
        entropy = -(log_p.exp() * log_p).sum(-1).mean().detach()
        self.alpha_optimizer.zero_grad()
        (self.log_alpha * (entropy - target)).backward()
        self.alpha_optimizer.step()
        return entropy

    def log(self):
        self.alpha = self.log_alpha.exp().item()
        return f"alpha {self.alpha:.4f}"


torch.manual_seed(0)
agent = Agent()
observations = torch.randn(32, 8, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        agent.update(observations)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    entropy = agent.update(observations)
for _ in range(4):
    observations.normal_()
    graph.replay()
    print(agent.log(), f"entropy {entropy.item():.4f}")
