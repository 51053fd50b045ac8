"""Reinforcement learning: policies, returns, normalizers."""

import torch
from torch import nn
from torch.nn import functional


def policy_drawn_by_torch_normal(device):
    policy = nn.Linear(6, 4).to(device)

    def act(observation):
        with torch.no_grad():
            mean, log_std = policy(observation).chunk(2, -1)
            action = torch.normal(
                mean, log_std.exp()
            )  # guilty: checks that no deviation is negative
        return action.tanh()

    return act, (torch.randn(5, 6, device=device),)


def policy_drawn_without_validation(device):
    policy = nn.Linear(6, 4).to(device)

    def act(observation):
        mean, log_std = policy(observation).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
        raw = normal.rsample()
        correction = 2 * (0.6931471805599453 - raw - functional.softplus(-2 * raw))
        return raw.tanh(), (normal.log_prob(raw) - correction).sum(-1)

    return act, (torch.randn(5, 6, device=device),)


class CountingNormalizer(nn.Module):
    """Running mean of observations; the number of them is a number of Python."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.count = 1e-4

    def forward(self, observation):
        self.count += observation.shape[0]  # guilty: counts only when Python runs
        delta = (observation - self.mean).sum(0)
        self.mean.add_(delta / self.count)  # guilty: divides by the count of the capture
        return observation - self.mean


def normalizer_with_a_python_count(device):
    return CountingNormalizer(6).to(device), (torch.randn(5, 6, device=device),)


class DeviceNormalizer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("square", torch.ones(size))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, observation):
        self.count += observation.shape[0]
        delta = observation - self.mean
        self.mean += delta.sum(0) / self.count
        self.square += (delta * (observation - self.mean) - self.square).sum(0) / self.count
        return delta * torch.rsqrt(self.square.clamp(min=1e-6))


def normalizer_with_a_device_count(device):
    return DeviceNormalizer(6).to(device), (torch.randn(5, 6, device=device),)


def epochs_over_shuffled_minibatches(device):
    model = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    states = torch.randn(32, 6, device=device)
    actions = torch.randint(3, (32,), device=device)
    advantages = torch.randn(32, device=device)

    def step():
        losses = []
        for _ in range(2):
            for index in torch.randperm(32, device=device).split(16):
                optimizer.zero_grad()
                log_p = -functional.cross_entropy(
                    model(states[index]), actions[index], reduction="none"
                )
                loss = -(log_p * advantages[index]).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses).mean()

    return step


def vtrace_backwards_in_time(device):
    rewards, values = torch.randn(6, 4, device=device), torch.randn(7, 4, device=device)
    done = torch.rand(6, 4, device=device) < 0.2

    def targets(rewards, values, done):
        returns, last = [], torch.zeros_like(values[0])
        for t in reversed(range(rewards.shape[0])):
            alive = 0.99 * (~done[t]).float()
            delta = rewards[t] + alive * values[t + 1] - values[t]
            last = delta + alive * 0.95 * last
            returns.insert(0, last + values[t])
        return torch.stack(returns)

    return targets, (rewards, values, done)


def exploration_noise_with_a_cpu_deviation(device):
    policy = nn.Linear(6, 2).to(device)
    deviation = torch.tensor(0.5)

    def act(observation):
        with torch.no_grad():
            action = policy(observation).tanh()
            noisy = action + torch.randn_like(action) * deviation  # guilty: a tensor of the CPU
            deviation.mul_(0.99)  # guilty: decays only when Python runs
        return noisy

    return act, (torch.randn(5, 6, device=device),)
