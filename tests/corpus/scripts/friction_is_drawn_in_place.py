"""Domain randomization: each episode draws the friction of its robots into one tensor."""

import torch


class Env:
    def __init__(self, robots=32):
        self.v = torch.zeros(robots, 3, device="cuda")
        self.action = torch.zeros(robots, 3, device="cuda")
        self.friction = torch.empty(robots, 1, device="cuda")
        self.episodes = 0
        self.reset()

    def reset(self):
        self.friction.uniform_(0.5, 1.5)
        self.v.zero_()
        self.episodes += 1

    def step(self):
        self.v.add_(self.action - self.friction * self.v, alpha=0.02)
        return self.v.square().sum(1)


env = Env()
env.step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    reward = env.step()
returns = []
for _ in range(3):
    env.reset()
    total = torch.zeros(32, device="cuda")
    for _ in range(10):
        env.action.normal_()
        graph.replay()
        total += reward
    returns.append(total)
print(env.episodes, torch.stack(returns).mean(1).tolist())
