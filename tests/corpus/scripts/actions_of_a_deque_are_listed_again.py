"""A robot averages the last four actions of its policy, from a list of them."""

from collections import deque

import torch
from torch import nn


class SmoothPolicy:
    def __init__(self, states=6, actions=2, keep=4):
        self.policy = nn.Sequential(nn.Linear(states, 32), nn.Tanh(), nn.Linear(32, actions))
        self.policy.cuda().requires_grad_(False)
        self.state = torch.zeros(states, device="cuda")
        self.recent = deque(maxlen=keep)
        self._capture()

    def _capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.policy(self.state)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.action = self.policy(self.state)

    def __call__(self, state):
        self.state.copy_(state)
        self.graph.replay()
        self.recent.append(self.action)  # guilty: four times the same tensor
        kept = list(self.recent)
        return sum(kept) / len(kept)


torch.manual_seed(0)
act = SmoothPolicy()
for i in range(6):
    print(i, act(torch.full((6,), float(i))).tolist())
