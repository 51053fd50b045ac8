"""Soft actor-critic: the actor's update is a graph; the entropy weight is read between replays."""

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

    def update_actor(self, observations):
        self.actor_optimizer.zero_grad()
        log_p = self.actor(observations).log_softmax(-1)
        q = self.critic(observations)
        loss = (log_p.exp() * (self.alpha * log_p - q)).sum(-1).mean()  # guilty: a number
        loss.backward()
        self.actor_optimizer.step()
        return -(log_p.exp() * log_p).sum(-1).mean().detach()

    def update_alpha(self, entropy, target=1.0):
        self.alpha_optimizer.zero_grad()
        (self.log_alpha * (entropy - target)).backward()
        self.alpha_optimizer.step()
        self.alpha = self.log_alpha.exp().item()  # guilty: the graph has the number of the capture


torch.manual_seed(0)
agent = Agent()
observations = torch.randn(32, 8, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        agent.update_actor(observations)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    entropy = agent.update_actor(observations)
for _ in range(4):
    observations.normal_()
    graph.replay()
    agent.update_alpha(entropy)
print(agent.alpha)
