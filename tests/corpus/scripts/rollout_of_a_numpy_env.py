import numpy as np
import torch
from torch import nn


class Env:
    def __init__(self, n):
        self.state, self.rng = np.zeros((n, 4), np.float32), np.random.default_rng(0)

    def step(self, action):
        self.state = 0.9 * self.state + 0.1 * action + self.rng.normal(size=self.state.shape)
        return self.state.astype(np.float32), -np.abs(self.state).sum(1)


policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)).cuda()
observation = torch.zeros(8, 4, device="cuda")
with torch.no_grad():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            policy(observation)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mean = policy(observation)
        action = mean + 0.1 * torch.randn_like(mean)

env = Env(8)
trajectory, rewards = [], []
obs = env.state
for _ in range(20):
    observation.copy_(torch.from_numpy(obs))
    graph.replay()
    act = action.cpu().numpy()
    trajectory.append((obs, act))
    obs, reward = env.step(act)
    rewards.append(reward)
batch = torch.from_numpy(np.stack([o for o, _ in trajectory])).cuda()
print(np.mean(rewards), policy(batch.flatten(0, 1)).shape)
