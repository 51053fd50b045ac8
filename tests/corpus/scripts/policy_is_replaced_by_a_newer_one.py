"""A self-play runner gets a newer policy, an object that has a network; the old one stays alive."""

import torch
from torch import nn


class Policy:
    def __init__(self, gain):
        self.net = nn.Linear(4, 1, bias=False, device="cuda").requires_grad_(False)
        nn.init.constant_(self.net.weight, gain)

    def act(self, x):
        return self.net(x)


class Actor:
    def __init__(self, policy):
        self.policy = policy
        self.x = torch.ones(2, 4, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.step()
        with torch.cuda.graph(self.graph):
            self.y = self.step()

    def step(self):
        return self.policy.act(self.x)


league = [Policy(1.0)]
actor = Actor(league[0])
actor.graph.replay()
league.append(Policy(2.0))
actor.policy = league[-1]  # guilty: the graph plays the first policy
actor.graph.replay()
print(actor.y.sum().item())  # eager: 16.0
