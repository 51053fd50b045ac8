"""A policy whose actions are clipped by the limits of the robot, which are in numpy."""

import numpy as np
import torch
from torch import nn

LIMITS = np.array([1.0, 0.5, 0.5, 0.2], dtype=np.float32)
policy = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Linear(32, 4)).cuda().eval()
obs = torch.zeros(1, 10, device="cuda")


@torch.no_grad()
def act():
    action = policy(obs).cpu().numpy()  # guilty: to the host
    return np.clip(action, -LIMITS, LIMITS)


act()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    action = act()
for tick in range(5):
    obs.copy_(torch.from_numpy(np.random.randn(1, 10).astype(np.float32)))
    graph.replay()
    print(tick, action)
