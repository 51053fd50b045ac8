"""Simulated physics, and policies that learn from what they see."""

import itertools

import numpy as np
import torch
from torch import nn


class SwappedWave:
    def __init__(self, device):
        self.now = torch.randn(16, 16, device=device)
        self.before = self.now.clone()

    def step(self):
        neighbors = sum(self.now.roll(s, d) for s in (1, -1) for d in (0, 1))  # guilty: as below
        laplacian = neighbors - 4 * self.now  # guilty: as below
        following = 2 * self.now - self.before + 0.1 * laplacian  # guilty: as below
        self.before, self.now = self.now, following  # guilty: the fields are exchanged by name
        return following


def wave_exchanges_names(device):
    return SwappedWave(device).step


class DoubleWave:
    """Two buffers exchanged by name, but twice in each step: the names end where they began."""

    def __init__(self, device):
        self.a = torch.randn(16, 16, device=device)
        self.b = self.a.clone()

    def half(self):
        laplacian = sum(self.a.roll(s, d) for s in (1, -1) for d in (0, 1)) - 4 * self.a
        self.b.mul_(-1).add_(self.a, alpha=2).add_(laplacian, alpha=0.1)
        self.a, self.b = self.b, self.a

    def step(self):
        self.half()
        self.half()
        return self.a.square().mean()


def wave_exchanges_names_twice(device):
    return DoubleWave(device).step


def minibatches_of_an_iterator(device):
    policy = nn.Linear(6, 3).to(device)
    opt = torch.optim.SGD(policy.parameters(), lr=0.02)
    rollouts = [torch.randn(8, 6, device=device) for _ in range(4)]
    actions = [torch.randint(3, (8,), device=device) for _ in range(4)]
    minibatches = itertools.cycle(zip(rollouts, actions, strict=True))

    def update():
        observation, action = next(minibatches)  # guilty: a replay never asks for the next one
        loss = nn.functional.cross_entropy(policy(observation), action)  # guilty: the same batch
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return update


class ReplayBuffer:
    def __init__(self, device, capacity=32):
        self.data = torch.zeros(capacity, 4, device=device)
        self.cursor, self.capacity = 0, capacity

    def extend(self, rows):
        n = rows.shape[0]
        self.data[self.cursor : self.cursor + n] = rows  # guilty: always the slots of the capture
        self.cursor = (self.cursor + n) % self.capacity  # guilty: a number of the host


def transitions_fill_a_buffer(device):
    policy = nn.Linear(4, 4).to(device)
    buffer = ReplayBuffer(device)
    state = torch.randn(4, 4, device=device)

    @torch.no_grad()
    def act():
        state.copy_(torch.tanh(policy(state) + 0.1 * torch.randn_like(state)))
        buffer.extend(state)
        return buffer.data.mean()

    return act


class RunningStatistics:
    def __init__(self, device):
        self.mean = torch.zeros(5, device=device)
        self.var = torch.ones(5, device=device)
        self.count = 1e-4

    def update(self, x):
        n = x.shape[0]
        delta = x.mean(0) - self.mean
        total = self.count + n
        self.mean.add_(delta * n / total)  # guilty: divides by the total of the capture
        between = delta**2 * self.count * n / total  # guilty: as above
        m2 = self.var * self.count + x.var(0) * n + between  # guilty: as above
        self.var.copy_(m2 / total)  # guilty: as above
        self.count = total  # guilty: counts on the host


def observations_are_normalized(device):
    statistics = RunningStatistics(device)
    x = torch.randn(8, 5, device=device)

    @torch.no_grad()
    def step():
        x.add_(0.1 * torch.randn_like(x))
        statistics.update(x)
        return (x - statistics.mean) / (statistics.var + 1e-8).sqrt()

    return step


def advantages_in_numpy(device):
    critic = nn.Linear(4, 1).to(device)
    rewards = np.linspace(0, 1, 12, dtype=np.float32)

    @torch.no_grad()
    def advantages(states):
        values = critic(states).squeeze(-1).cpu().numpy()  # guilty: copies to pageable memory
        out = np.zeros_like(rewards)
        last = 0.0
        for t in reversed(range(11)):
            last = rewards[t] + 0.99 * values[t + 1] - values[t] + 0.99 * 0.95 * last
            out[t] = last
        return torch.from_numpy(out).to(device)  # guilty: copies from pageable memory

    return advantages, (torch.randn(12, 4, device=device),)


def lattice_boltzmann(device):
    """Loops over Python lists of velocities and weights, which are constant."""
    velocities = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    weights = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
    f = torch.stack([w * torch.ones(12, 12) for w in weights]).to(device)
    f[1, 3:6] += 0.02
    wall = torch.zeros(12, 12, dtype=torch.bool)
    wall[0] = True
    wall = wall.to(device)
    opposite = [0, 3, 4, 1, 2, 7, 8, 5, 6]

    def step():
        rho = f.sum(0)
        ux = sum(c[0] * f[i] for i, c in enumerate(velocities)) / rho
        uy = sum(c[1] * f[i] for i, c in enumerate(velocities)) / rho
        square = 1.5 * (ux**2 + uy**2)
        after = []
        for i, (cx, cy) in enumerate(velocities):
            cu = 3 * (cx * ux + cy * uy)
            equilibrium = rho * weights[i] * (1 + cu + 0.5 * cu**2 - square)
            after.append(f[i] - (f[i] - equilibrium) / 0.8)
        for i, shift in enumerate(velocities):
            moved = torch.where(wall, f[opposite[i]], after[i])
            after[i] = torch.roll(moved, shifts=shift, dims=(0, 1))
        torch.stack(after, out=f)
        return rho.sum()

    return step


def clipped_policy_update(device):
    """A distribution made in the step, without validation; advantages normalized on the device."""
    actor, critic = nn.Linear(6, 2).to(device), nn.Linear(6, 1).to(device)
    log_std = nn.Parameter(torch.zeros(2, device=device))
    params = [*actor.parameters(), *critic.parameters(), log_std]
    opt = torch.optim.Adam(params, lr=3e-3, capturable=True, foreach=True)
    states, actions = torch.randn(16, 6, device=device), torch.randn(16, 2, device=device)
    old, returns = torch.randn(16, device=device) - 3, torch.randn(16, device=device)

    def update():
        dist = torch.distributions.Normal(actor(states), log_std.exp(), validate_args=False)
        logp = dist.log_prob(actions).sum(-1)
        ratio = (logp - old).clamp(-5, 5).exp()
        value = critic(states).squeeze(-1)
        adv = returns - value.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        policy = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
        loss = policy + 0.5 * (returns - value).square().mean() - 0.01 * dist.entropy().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 0.5)
        opt.step()
        with torch.no_grad():
            kl = ((ratio - 1) - (logp - old)).mean()
        return loss.detach(), kl

    return update


def targets_follow_every_other_update(device):
    """TD3 delays its targets; a counter of the device turns the update into one by nothing."""
    critic, target = nn.Linear(5, 1).to(device), nn.Linear(5, 1).to(device)
    target.load_state_dict(critic.state_dict())
    target.requires_grad_(False)
    opt = torch.optim.SGD(critic.parameters(), lr=0.05)
    state, reward = torch.randn(10, 5, device=device), torch.randn(10, 1, device=device)
    count = torch.zeros((), dtype=torch.long, device=device)

    def update():
        with torch.no_grad():
            smoothing = (torch.randn_like(state) * 0.2).clamp_(-0.5, 0.5)
            goal = reward + 0.99 * target(state + smoothing)
        loss = nn.functional.mse_loss(critic(state), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            count.add_(1)
            tau = torch.where(count % 2 == 0, 0.005, 0.0)
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, tau)
        return loss.detach()

    return update


def bodies_with_an_adaptive_step(device):
    """The size of the step follows from the accelerations, on the device, as does the time."""
    position, velocity = torch.randn(6, 3, device=device), torch.zeros(6, 3, device=device)
    mass = torch.rand(6, 1, device=device) + 0.5
    time = torch.zeros((), dtype=torch.float64, device=device)

    def acceleration():
        d = position[None] - position[:, None]
        inverse = (d.square().sum(-1, keepdim=True) + 0.01).pow(-1.5)
        return (d * inverse * mass[None]).sum(1)

    def step():
        a = acceleration()
        dt = (0.05 / a.norm(dim=1).max().sqrt()).clamp(1e-4, 1e-2)
        velocity.addcmul_(a, 0.5 * dt)
        position.addcmul_(velocity, dt)
        velocity.addcmul_(acceleration(), 0.5 * dt)
        time.add_(dt)
        return 0.5 * (mass * velocity.square()).sum(), time.clone()

    return step
