"""The actor's answers are kept for the update, but they are the tensors that each replay fills."""

from typing import NamedTuple

import torch
from torch import nn


class Transition(NamedTuple):
    observation: torch.Tensor
    action: torch.Tensor
    log_probability: torch.Tensor
    value: torch.Tensor


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.mean, self.value = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, observation):
        hidden = self.body(observation)
        mean = self.mean(hidden)
        action = mean + 0.3 * torch.randn_like(mean)
        logs = -((action - mean) / 0.3).square().sum(-1) / 2
        return action, logs, self.value(hidden).squeeze(-1)


torch.manual_seed(0)
actor = Actor().cuda().requires_grad_(False)
static = torch.zeros(8, 6, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        actor(static)
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outputs = actor(static)

observation = torch.randn(8, 6, device="cuda")
drive = torch.randn(2, 6, device="cuda")
rollout = []
for _ in range(5):
    static.copy_(observation)
    graph.replay()
    rollout.append(Transition(observation, *outputs))  # guilty: the tensors of the graph
    observation = (0.9 * observation + outputs[0] @ drive).clamp(-3, 3)

batch = Transition(*(torch.stack(field) for field in zip(*rollout, strict=True)))  # guilty: equal
advantage = batch.observation.mean(-1).flip(0).cumsum(0).flip(0) - batch.value
print(float((batch.log_probability * advantage).mean()))
