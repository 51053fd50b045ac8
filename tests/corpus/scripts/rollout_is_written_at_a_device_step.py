"""A policy and its environment in one graph, which writes into the rollout."""

import torch
from torch import nn

LENGTH, COPIES = 8, 16
torch.manual_seed(4)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).cuda().requires_grad_(False)
state = torch.randn(COPIES, 4, device="cuda")
step = torch.zeros(1, dtype=torch.int64, device="cuda")
rollout = {
    "state": torch.zeros(LENGTH, COPIES, 4, device="cuda"),
    "action": torch.zeros(LENGTH, COPIES, dtype=torch.int64, device="cuda"),
    "reward": torch.zeros(LENGTH, COPIES, device="cuda"),
}


def interact():
    logits = policy(state)
    action = (logits.softmax(-1) / torch.empty_like(logits).exponential_()).argmax(-1)
    rollout["state"].index_copy_(0, step, state[None])
    rollout["action"].index_copy_(0, step, action[None])
    push = (action * 2 - 1).float()
    position, speed = state[:, 0] + 0.1 * state[:, 1], state[:, 1] + 0.1 * push
    done = position.abs() > 2
    state[:, 0] = torch.where(done, 0.0, position)
    state[:, 1] = torch.where(done, 0.0, speed)
    rollout["reward"].index_copy_(0, step, 1.0 - done.float()[None])
    step.add_(1).remainder_(LENGTH)


saved = state.clone()
for _ in range(2):
    interact()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    interact()
state.copy_(saved)
step.zero_()

for _ in range(3):
    for _ in range(LENGTH):
        graph.replay()
    returns = rollout["reward"].flip(0).cumsum(0).flip(0)
    print(returns[0].mean().item(), rollout["action"].float().mean().item())
