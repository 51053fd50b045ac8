"""TD3 updates its policy at every second step; the count is in Python."""

import copy

import torch
from torch import nn
from torch.nn import functional


class TD3:
    def __init__(self):
        self.actor = nn.Linear(4, 2).cuda()
        self.critic = nn.Linear(6, 1).cuda()
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-2, capturable=True)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-2, capturable=True)
        self.policy_delay = 2
        self.updates = 0

    def update(self, obs, action, reward):
        self.updates += 1
        q = self.critic(torch.cat([obs, action], -1))
        loss = functional.mse_loss(q, reward + 0.9 * self.target(torch.cat([obs, action], -1)))
        self.critic_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_opt.step()
        if self.updates % self.policy_delay == 0:  # guilty: decided once
            policy_loss = -self.critic(torch.cat([obs, self.actor(obs)], -1)).mean()
            self.actor_opt.zero_grad(set_to_none=True)
            policy_loss.backward()
            self.actor_opt.step()
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(self.target.parameters()), list(self.critic.parameters()), 0.05
                )
        return loss


agent = TD3()
obs = torch.randn(16, 4, device="cuda")
action = torch.randn(16, 2, device="cuda")
reward = torch.randn(16, 1, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(4):
        agent.update(obs, action, reward)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = agent.update(obs, action, reward)
for _ in range(6):
    obs.normal_()
    graph.replay()
print(loss.item(), agent.actor.weight.norm().item())
