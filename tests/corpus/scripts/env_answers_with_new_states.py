"""A vectorized environment answers with new tensors, and the actor's graph reads the first."""

import torch
from torch import nn


class Pendulums:
    def __init__(self, count):
        self.angle = torch.rand(count, device="cuda") * 3
        self.speed = torch.zeros(count, device="cuda")

    def observe(self):
        return torch.stack([self.angle.sin(), self.angle.cos(), self.speed], dim=1)

    def step(self, torque):
        self.speed = (self.speed + 0.05 * (torque - 9.8 * self.angle.sin())).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.speed
        return self.observe(), -self.angle.square(), self.angle.abs() > 6


class Actor:
    def __init__(self, env):
        self.env = env
        self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1), nn.Tanh()).cuda()
        self.obs = env.observe()

    def act(self):
        return 2.0 * self.net(self.obs).squeeze(1)

    def capture(self):
        self.act()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.torque = self.act()

    def rollout(self, steps):
        total = 0.0
        for _ in range(steps):
            self.graph.replay()
            self.obs, reward, done = self.env.step(self.torque)  # guilty: the graph reads the old
            total += reward.mean().item()
            if done.all():
                break
        return total


torch.manual_seed(0)
with torch.no_grad():
    actor = Actor(Pendulums(4))
    actor.capture()
    print([actor.rollout(5) for _ in range(2)])
