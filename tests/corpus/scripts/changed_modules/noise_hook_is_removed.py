"""Exploration noise is a hook of the policy that is removed for the evaluation."""

import contextlib

import torch
from torch import nn


@contextlib.contextmanager
def exploring(policy, scale):
    def add_noise(module, inputs, output):
        return output + scale * torch.randn_like(output)

    handle = policy.register_forward_hook(add_noise)
    try:
        yield policy
    finally:
        handle.remove()  # <- child-module-hooks-captured


torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)).cuda().requires_grad_(False)
seen = torch.zeros(1, 6, device="cuda")
with exploring(policy, 0.3):
    policy(seen)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action = policy(seen)
    for _ in range(5):
        seen.add_(0.1 * torch.randn(1, 6, device="cuda"))
        graph.replay()
        print("explores", action.tolist())
for _ in range(5):
    seen.normal_()
    graph.replay()
    print("evaluates", action.tolist())
