"""A policy as a graphed callable; the simulator runs on the host with numpy."""

import numpy as np
import torch
from torch import nn


class Simulator:
    def __init__(self):
        self.state, self.steps = np.zeros((4, 2), dtype=np.float32), 0

    def step(self, action):
        self.steps += 1
        self.state = 0.5 * self.state + action
        return self.state, -np.abs(self.state).sum()


policy = nn.Linear(2, 2, bias=False, device="cuda").requires_grad_(False)
policy.weight.copy_(torch.eye(2))
sample = torch.ones(4, 2, device="cuda")
policy = torch.cuda.make_graphed_callables(policy, (sample,))

simulator = Simulator()
rollout = []
observation = simulator.state + 1
for _ in range(3):
    with torch.no_grad():
        action = policy(torch.from_numpy(observation).cuda())
    observation, reward = simulator.step(action.cpu().numpy())
    rollout.append((action.clone(), float(reward)))

print(torch.stack([action for action, _reward in rollout]).sum().item())  # eager: 28.0
print(sum(reward for _action, reward in rollout))  # eager: -38.0
print(simulator.steps)  # eager: 3
