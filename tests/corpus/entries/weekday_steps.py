"""What robotics, simulation and language model teams run on an ordinary day."""

from __future__ import annotations

import math
import time

import torch
from torch import nn
from torch.nn import functional


class _Controller:
    def __init__(self, device, joints=6):
        self.target = torch.zeros(joints, device=device)
        self.integral = torch.zeros(joints, device=device)
        self.last = time.monotonic()

    def __call__(self, q):
        now = time.monotonic()  # guilty: the clock of the capture
        dt = now - self.last  # guilty: as above
        self.last = now
        error = self.target - q
        self.integral += error * dt  # guilty: as above
        return 4.0 * error + 0.5 * self.integral


def joints_follow_a_wall_clock(device):
    return _Controller(device), (torch.randn(6, device=device),)


class _FixedController:
    def __init__(self, device, joints=6, rate_hz=200):
        self.target = torch.zeros(joints, device=device)
        self.integral = torch.zeros(joints, device=device)
        self.before = torch.zeros(joints, device=device)
        self.dt = 1.0 / rate_hz

    def __call__(self, q):
        error = self.target - q
        self.integral += error * self.dt
        rate = (error - self.before) / self.dt
        self.before.copy_(error)
        return 4.0 * error + 0.5 * self.integral + 0.01 * rate


def joints_follow_at_a_fixed_rate(device):
    return _FixedController(device), (torch.randn(6, device=device),)


class _Legs:
    """Many robots in a batch, one of which falls now and then."""

    push_interval = 3

    def __init__(self, device, robots=8):
        self.device, self.robots = device, robots
        self.height = torch.full((robots,), 1.0, device=device)
        self.speed = torch.zeros(robots, 2, device=device)
        self.age = torch.zeros(robots, dtype=torch.long, device=device)
        self.common_step_counter = 0

    def physics(self, action):
        self.speed.mul_(0.9).add_(action, alpha=0.1)
        self.height.sub_(0.02 * self.speed.norm(dim=1))
        self.age += 1

    def restart(self, fallen):
        self.height.masked_fill_(fallen, 1.0)
        self.speed.masked_fill_(fallen[:, None], 0.0)
        self.age.masked_fill_(fallen, 0)


def robots_are_pushed_now_and_then(device):
    class Pushed(_Legs):
        def step(self, action):
            self.physics(action)
            self.common_step_counter += 1  # guilty: counted once only
            if self.common_step_counter % self.push_interval == 0:  # guilty: one way only
                self.speed += torch.rand_like(self.speed) - 0.5
            return self.speed.clone()

    env = Pushed(device)
    return env.step, (torch.randn(8, 2, device=device),)


def robots_restart_by_a_mask(device):
    class Masked(_Legs):
        def step(self, action):
            self.physics(action)
            fallen = (self.height < 0.5) | (self.age > 50)
            self.restart(fallen)
            return self.speed.clone(), fallen

    env = Masked(device)
    return env.step, (torch.randn(8, 2, device=device),)


def robots_restart_by_their_numbers(device):
    class Listed(_Legs):
        def step(self, action):
            self.physics(action)
            fallen = self.height < 0.5
            ids = fallen.nonzero(as_tuple=False).flatten()  # guilty: as many as have fallen
            if len(ids) > 0:
                self.height[ids] = 1.0
                self.speed[ids] = 0.0
            return self.speed.clone()

    env = Listed(device)
    return env.step, (torch.randn(8, 2, device=device),)


# A pressure solve up to a tolerance.
def pressure_up_to_a_tolerance(device):
    rhs = torch.randn(16, 16, device=device)

    def solve(rhs):
        p = torch.zeros_like(rhs)
        for _ in range(50):
            around = sum(torch.roll(p, shift, dim) for shift in (1, -1) for dim in (0, 1))
            update = (around - rhs) / 4
            residual = (update - p).abs().max()
            p = update
            if residual < 1e-3:  # guilty: the host decides
                break
        return p - p.mean()

    return solve, (rhs,)


# As many sweeps as there are, between two buffers.
def pressure_between_two_buffers(device):
    rhs = torch.randn(16, 16, device=device)
    a, b = torch.zeros(16, 16, device=device), torch.zeros(16, 16, device=device)

    def solve(rhs):
        old, new = a, b
        for _ in range(8):
            around = sum(torch.roll(old, shift, dim) for shift in (1, -1) for dim in (0, 1))
            torch.sub(around, rhs, out=new)
            new.div_(4)
            old, new = new, old
        return old - old.mean()

    return solve, (rhs,)


class _Pendulum:
    def __init__(self, device):
        self.state = torch.tensor([0.1, 0.0], device=device)
        self.time, self.dt = 0.0, 0.05

    def step(self):
        angle, speed = self.state.unbind()
        drive = 0.8 * math.cos(2.0 * self.time)  # guilty: the drive of the capture
        speed = speed + self.dt * (drive - torch.sin(angle))
        self.state.copy_(torch.stack([angle + self.dt * speed, speed]))
        self.time += self.dt  # guilty: counted once only
        return self.state.clone()


def pendulum_driven_by_a_python_clock(device):
    return _Pendulum(device).step


class _DevicePendulum:
    def __init__(self, device):
        self.state = torch.tensor([0.1, 0.0], device=device)
        self.time, self.dt = torch.zeros((), device=device), 0.05

    def step(self):
        angle, speed = self.state.unbind()
        drive = 0.8 * torch.cos(2.0 * self.time)
        speed = speed + self.dt * (drive - torch.sin(angle))
        self.state.copy_(torch.stack([angle + self.dt * speed, speed]))
        self.time += self.dt
        return self.state.clone()


def pendulum_driven_by_a_device_clock(device):
    return _DevicePendulum(device).step


# Particles keep their neighbors for a few steps.
def particles_list_their_neighbors_rarely(device):
    x, v = torch.rand(12, 2, device=device), torch.zeros(12, 2, device=device)
    near = torch.zeros(12, 12, dtype=torch.bool, device=device)
    done = 0

    def step():
        nonlocal done
        if done % 4 == 0:  # guilty: one way only
            near.copy_(torch.cdist(x, x) < 0.4)
        done += 1  # guilty: counted once only
        apart = x[:, None] - x[None]
        v.add_((apart * near[..., None]).sum(1), alpha=0.05)
        x.add_(v, alpha=0.1)
        return x.clone()

    return step


class _Experts(nn.Module):
    def __init__(self, width=8, experts=4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def sparse(self, x):
        weight, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort()
        sizes = torch.zeros(len(self.experts), dtype=torch.long, device=x.device)
        sizes.scatter_add_(0, chosen, torch.ones_like(chosen))
        parts = x[order].split(sizes.tolist())  # guilty: sizes on the host
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.empty_like(done).index_copy(0, order, done) * weight[:, None]

    def dense(self, x):
        probabilities = self.router(x).softmax(-1)
        weight, chosen = probabilities.topk(2, dim=-1)
        gates = torch.zeros_like(probabilities).scatter(-1, chosen, weight)
        done = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (gates[..., None] * done).sum(1)


def experts_get_their_tokens(device):
    model = _Experts().to(device).requires_grad_(False)
    return model.sparse, (torch.randn(10, 8, device=device),)


def experts_get_all_tokens(device):
    model = _Experts().to(device).requires_grad_(False)
    return model.dense, (torch.randn(10, 8, device=device),)


class _Attention(nn.Module):
    def __init__(self, width=8, length=16):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("keys", torch.zeros(1, length, width))
        self.register_buffer("values", torch.zeros(1, length, width))
        self.register_buffer("length", torch.zeros(1, dtype=torch.long))
        self.start_pos = 0

    def by_number(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        end = self.start_pos + x.shape[1]
        self.keys[:, self.start_pos : end] = k  # guilty: the slot of the capture
        self.values[:, self.start_pos : end] = v  # guilty: as above
        self.start_pos = end  # guilty: counted once only
        return functional.scaled_dot_product_attention(q, self.keys[:, :end], self.values[:, :end])

    def by_tensor(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.keys.index_copy_(1, self.length, k)
        self.values.index_copy_(1, self.length, v)
        seen = torch.arange(self.keys.shape[1], device=x.device) <= self.length
        self.length.add_(1).remainder_(self.keys.shape[1])
        return functional.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=seen[None]
        )


def llama_cache_by_start_pos(device):
    model = _Attention().to(device).requires_grad_(False)
    return model.by_number, (torch.randn(1, 1, 8, device=device),)


def llama_cache_by_a_length_tensor(device):
    model = _Attention().to(device).requires_grad_(False)
    return model.by_tensor, (torch.randn(1, 1, 8, device=device),)


# Two micro-batches make one step of the optimizer; the trainer counts them.
class _Trainer:
    accumulate = 2

    def __init__(self, device):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, capturable=True)
        self.tokens = torch.randint(0, 32, (4, 9), device=device)
        self.micro_step = 0

    def loss(self):
        logits = self.model(self.tokens[:, :-1])
        z = logits.logsumexp(-1).square().mean()
        target = self.tokens[:, 1:].flatten()
        return functional.cross_entropy(logits.flatten(0, 1), target) + 1e-4 * z

    def counted_step(self):
        loss = self.loss() / self.accumulate
        loss.backward()
        self.micro_step += 1  # guilty: counted once only
        if self.micro_step % self.accumulate == 0:  # guilty: one way only
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    def whole_step(self):
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.tokens.device)
        for _ in range(self.accumulate):
            loss = self.loss() / self.accumulate
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return total


def pretraining_counts_micro_batches(device):
    return _Trainer(device).counted_step


def pretraining_in_whole_steps(device):
    return _Trainer(device).whole_step
