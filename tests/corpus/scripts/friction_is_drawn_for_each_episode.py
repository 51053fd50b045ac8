"""Domain randomization: each episode draws the friction of its robots."""

import torch


class Env:
    def __init__(self, robots=32):
        self.robots = robots
        self.v = torch.zeros(robots, 3, device="cuda")
        self.action = torch.zeros(robots, 3, device="cuda")
        self.reset()

    def reset(self):
        self.friction = 0.5 + torch.rand(self.robots, 1, device="cuda")  # guilty: a new tensor
        self.v.zero_()

    def step(self):
        self.v.add_(self.action - self.friction * self.v, alpha=0.02)
        return self.v.square().sum(1)


env = Env()
env.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    reward = env.step()
for episode in range(3):
    env.reset()
    for _ in range(10):
        env.action.normal_()
        graph.replay()
    print(episode, reward.mean().item())
