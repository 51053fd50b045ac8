"""PPO: the log-probabilities of the old policy are copied into a rollout before the epochs."""

from typing import NamedTuple

import torch
from torch import nn
from torch.distributions import Categorical


class Rollout(NamedTuple):
    states: torch.Tensor
    actions: torch.Tensor
    old: torch.Tensor
    advantage: torch.Tensor


torch.manual_seed(1)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)).cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
states = torch.zeros(16, 4, device="cuda")
actions = torch.zeros(16, dtype=torch.long, device="cuda")


def log_probs(states, actions):
    return policy(states).log_softmax(-1).gather(1, actions.unsqueeze(1)).squeeze(1)


with torch.no_grad():
    log_probs(states, actions)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_logp = log_probs(states, actions)


def collect():
    states.normal_()
    with torch.no_grad():
        actions.copy_(Categorical(logits=policy(states)).sample())
    graph.replay()
    advantage = (actions == states.argmax(1) % 3).float() - 0.33
    return Rollout(states.clone(), actions.clone(), static_logp.detach().clone(), advantage)


for iteration in range(3):
    rollout = collect()
    for _epoch in range(3):
        new = log_probs(rollout.states, rollout.actions)
        ratio = (new - rollout.old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * rollout.advantage, clipped * rollout.advantage).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    graph.replay()
    print(iteration, loss.item(), (static_logp - rollout.old).mean().item())
