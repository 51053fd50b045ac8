"""Networks that solve equations, and the numerical methods around them."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn


def _network(inputs, outputs, device):
    layers = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))
    return layers.to(device)


class _CausalWeights:
    """Residuals of later times count once those of earlier times are small."""

    def __init__(self, device, slices=8, strengths=(10.0, 100.0, 1000.0)):
        self.lower = torch.triu(torch.ones(slices, slices, device=device), 1).T
        self.strengths = list(strengths)

    def __call__(self, residuals):
        weights = torch.exp(-self.strengths[0] * (self.lower @ residuals.detach()))
        if len(self.strengths) > 1 and weights.min() > 0.99:  # guilty: the host waits
            self.strengths.pop(0)
        return (weights * residuals).mean()


def residuals_weighted_in_causal_order(device):
    field, causal = _network(2, 1, device), _CausalWeights(device)

    def loss(time, space):
        time = time.detach().requires_grad_(True)
        value = field(torch.stack([time, space], -1))
        (speed,) = torch.autograd.grad(value.sum(), time, create_graph=True)
        residual = (speed + value.squeeze(-1)).square()
        return causal(residual.view(8, -1).mean(1))

    times = torch.linspace(0, 1, 32, device=device)
    return loss, (times, torch.rand(32, device=device))


class _DualAveraging:
    """The step size of Hamiltonian Monte Carlo during warm-up, as in Hoffman and Gelman."""

    def __init__(self, step, device, target=0.8):
        self.center = math.log(2 * step)
        self.target = target
        self.count = 0
        self.error = torch.zeros((), device=device)
        self.log_step = torch.full((), math.log(step), device=device)

    def update(self, acceptance):
        self.count += 1  # guilty: a replay does not count
        weight = 1.0 / (self.count + 10)  # guilty: the weight of the captured step
        self.error.mul_(1 - weight).add_(weight * (self.target - acceptance))  # guilty: as above
        shrink = math.sqrt(self.count) / 0.05  # guilty: as above
        self.log_step.copy_(self.center - shrink * self.error)  # guilty: as above


def hamiltonian_chain_tunes_its_step(device):
    position = torch.randn(16, 3, device=device)
    tuner = _DualAveraging(0.1, device)

    def energy(x):
        return 0.5 * x.square().sum(-1) + 0.1 * x.pow(4).sum(-1)

    def slope(x):
        return x + 0.4 * x.pow(3)

    def transition():
        step = tuner.log_step.exp()
        momentum = torch.randn_like(position)
        before = energy(position) + 0.5 * momentum.square().sum(-1)
        x, p = position.clone(), momentum - 0.5 * step * slope(position)
        for _ in range(4):
            x = x + step * p
            p = p - step * slope(x)
        p = p + 0.5 * step * slope(x)
        after = energy(x) + 0.5 * p.square().sum(-1)
        probability = (before - after).exp().clamp_max(1.0)
        probability = torch.where(probability.isfinite(), probability, 0.0)
        accepted = torch.rand_like(probability) < probability
        position.copy_(torch.where(accepted[:, None], x, position))
        tuner.update(probability.mean())
        return probability

    return transition


class _GrowingHorizon(nn.Module):
    """A neural differential equation that is trained on longer and longer trajectories."""

    def __init__(self, device, longest=2.0):
        super().__init__()
        self.field = _network(2, 2, device)
        self.horizon, self.longest = 0.1, longest

    def forward(self, state):
        if self.training:
            self.horizon = min(self.horizon * 1.05, self.longest)  # guilty: grows in Python only
        step = self.horizon / 8  # guilty: the step size of the capture
        path = [state]
        for _ in range(8):
            half = state + 0.5 * step * self.field(state)  # guilty: reads the step size
            state = state + step * self.field(half)  # guilty: reads the step size
            path.append(state)
        return torch.stack(path)


def horizon_of_a_neural_equation_grows(device):
    return _GrowingHorizon(device), (torch.randn(4, 2, device=device),)


def modes_of_a_flow_by_least_squares(device):
    """Dynamic mode decomposition: the linear map between two snapshots in a lifted space."""
    lift = _network(6, 5, device).requires_grad_(False)

    def advance(before, after, state):
        first, second = lift(before), lift(after)
        operator = torch.linalg.pinv(first) @ second  # guilty: its singular values are checked
        return lift(state) @ operator

    snapshots = torch.randn(20, 6, device=device)
    return advance, (snapshots, snapshots.roll(1, 0), torch.randn(3, 6, device=device))


def energy_learned_from_its_derivatives(device):
    """A Hamiltonian network: speeds and forces are derivatives of one number."""
    energy = _network(4, 1, device)
    optimizer = torch.optim.SGD(energy.parameters(), lr=0.01)
    state = torch.randn(32, 4, device=device, requires_grad=True)
    truth = torch.cat([state.detach()[:, 2:], -state.detach()[:, :2]], 1)

    def step():
        optimizer.zero_grad()
        (slope,) = torch.autograd.grad(energy(state).sum(), state, create_graph=True)
        loss = (torch.cat([slope[:, 2:], -slope[:, :2]], 1) - truth).square().mean()
        loss.backward(inputs=list(energy.parameters()))
        optimizer.step()
        return loss.detach()

    return step


class _BranchAndTrunk(nn.Module):
    """An operator network: sensors of a function, and Fourier features of points."""

    def __init__(self, sensors=12, features=8):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(2, features))
        self.branch = nn.Sequential(nn.Linear(sensors, 32), nn.GELU(), nn.Linear(32, 16))
        self.trunk = nn.Sequential(nn.Linear(2 * features, 32), nn.GELU(), nn.Linear(32, 16))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, values, points):
        angles = 2 * math.pi * points @ self.frequencies
        trunk = self.trunk(torch.cat([angles.sin(), angles.cos()], -1))
        return torch.einsum("bk,nk->bn", self.branch(values), trunk) + self.bias


def operator_of_branch_and_trunk_is_trained(device):
    model = _BranchAndTrunk().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    values, points = torch.randn(6, 12, device=device), torch.rand(20, 2, device=device)
    answers = torch.randn(6, 20, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        error = model(values, points) - answers
        loss = (error.norm(dim=1) / answers.norm(dim=1)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


class _Reservoir(nn.Module):
    """An echo state network that gathers the two matrices of its ridge regression."""

    def __init__(self, inputs=3, size=24):
        super().__init__()
        recurrent = torch.randn(size, size)
        self.register_buffer("recurrent", 0.9 * recurrent / torch.linalg.matrix_norm(recurrent, 2))
        self.register_buffer("feed", torch.randn(inputs, size) * 0.5)
        self.register_buffer("state", torch.zeros(size))
        self.register_buffer("gram", torch.eye(size) * 1e-3)
        self.register_buffer("moment", torch.zeros(size, inputs))

    def forward(self, signal):
        for now, then in itertools.pairwise(signal):
            fresh = torch.tanh(self.state @ self.recurrent + now @ self.feed)
            self.state.lerp_(fresh, 0.7)
            self.gram.addr_(self.state, self.state)
            self.moment.addr_(self.state, then)
        return self.state.clone()


def reservoir_gathers_its_regression(device):
    return _Reservoir().to(device), (torch.randn(9, 3, device=device),)


def ensemble_is_moved_by_an_observation(device):
    """The ensemble Kalman filter, with perturbed observations and a factor that is not checked."""
    members = torch.randn(24, 5, device=device)
    observe = torch.randn(5, 3, device=device)

    def analyze(observation):
        members.add_(0.05 * (members.roll(1, 1) - members))
        seen = members @ observe
        deviation, seen_deviation = members - members.mean(0), seen - seen.mean(0)
        covariance = seen_deviation.T @ seen_deviation / 23 + 0.1 * torch.eye(3, device=device)
        factor, _ = torch.linalg.cholesky_ex(covariance)
        innovation = observation + 0.3 * torch.randn_like(seen) - seen
        half = torch.linalg.solve_triangular(factor, innovation.T, upper=False)
        solved = torch.linalg.solve_triangular(factor.T, half, upper=True)
        members.add_((deviation.T @ seen_deviation / 23 @ solved).T)
        return members.mean(0), members.std(0)

    return analyze, (torch.randn(3, device=device),)
