"""A policy whose actions go to numpy after the replay."""

import numpy as np
import torch
from torch import nn

LIMITS = np.array([1.0, 0.5, 0.5, 0.2], dtype=np.float32)
policy = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Linear(32, 4)).cuda().eval()
obs = torch.zeros(1, 10, device="cuda")
limits = torch.from_numpy(LIMITS).cuda()


@torch.no_grad()
def act():
    return torch.clamp(policy(obs), -limits, limits)


act()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    action = act()
state, log = np.zeros((1, 10), dtype=np.float32), []
for _ in range(5):
    obs.copy_(torch.from_numpy(state))
    graph.replay()
    command = action.cpu().numpy()[0]
    log.append(command)
    state[0, :4] += 0.1 * command
print(np.stack(log), state)
