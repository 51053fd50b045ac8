"""Controllers, filters and prices: what robots and desks run many times a second."""

import datetime
import math
import time

import torch
from torch import nn


class Kalman(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4, device=device))
        self.register_buffer("cov", torch.eye(4, device=device))
        self.register_buffer(
            "motion", torch.eye(4, device=device) + 0.1 * torch.ones(4, 4, device=device).triu(1)
        )
        self.register_buffer("sensor", torch.eye(2, 4, device=device))
        self.register_buffer("noise", 0.1 * torch.eye(2, device=device))

    @torch.no_grad()
    def forward(self, z):
        mean = self.motion @ self.mean
        cov = self.motion @ self.cov @ self.motion.T + 0.01 * torch.eye(4, device=z.device)
        root, _info = torch.linalg.cholesky_ex(self.sensor @ cov @ self.sensor.T + self.noise)
        half = torch.linalg.solve_triangular(root, self.sensor @ cov, upper=False)
        white = torch.linalg.solve_triangular(root, (z - self.sensor @ mean)[:, None], upper=False)
        self.mean.copy_(mean + (half.T @ white)[:, 0])
        self.cov.copy_(cov - half.T @ half)
        return self.mean.clone()


def filter_keeps_its_belief(device):
    # State is two buffers written in place; the `_ex` factorization checks nothing.
    return Kalman(device), (torch.randn(2, device=device),)


def gate_takes_the_larger_distance(device):
    belief, floor = torch.zeros(3, device=device), torch.ones((), device=device)

    def update(z):
        innovation = z - belief
        distance = max((innovation * innovation).sum(), floor)  # guilty: max() reads a truth value
        belief.add_(innovation / distance)
        return belief.clone()

    return update, (torch.randn(3, device=device),)


class PathIntegral(nn.Module):
    """MPPI."""

    horizon, samples = 6, 64

    def __init__(self, device):
        super().__init__()
        self.register_buffer("plan", torch.zeros(self.horizon, 2, device=device))
        self.dynamics = nn.Linear(6, 4, device=device)

    @torch.no_grad()
    def forward(self, state):
        noise = torch.randn(self.samples, self.horizon, 2, device=state.device) * 0.3
        controls = (self.plan + noise).clamp(-1, 1)
        states = state.expand(self.samples, -1)
        cost = state.new_zeros(self.samples)
        for step in range(self.horizon):
            states = states + 0.1 * self.dynamics(torch.cat((states, controls[:, step]), 1)).tanh()
            cost += states.square().sum(1) + 0.01 * controls[:, step].square().sum(1)
        weights = torch.softmax(-(cost - cost.min()) / 0.5, 0)
        best = (weights[:, None, None] * controls).sum(0)
        self.plan.copy_(torch.cat((best[1:], best[-1:])))
        return best[0]


def planner_shifts_its_plan(device):
    # Noise of the default generator, the plan is a buffer.
    return PathIntegral(device), (torch.randn(4, device=device),)


class Pid:
    def __init__(self, device):
        self.integral = torch.zeros(6, device=device)
        self.previous = torch.zeros(6, device=device)
        self.at = time.monotonic()

    def __call__(self, error):
        now = time.monotonic()  # guilty: the elapsed time is a number of the capture
        dt, self.at = now - self.at, now  # guilty: the same
        self.integral += error * dt  # guilty: the same
        rate = (error - self.previous) / max(dt, 1e-4)
        self.previous.copy_(error)
        return 2.0 * error + 0.5 * self.integral + 0.01 * rate


def controller_measures_its_period(device):
    return Pid(device), (torch.randn(6, device=device),)


def option_price_and_delta(device):
    # Random numbers of the default generator, the gradient is taken inside.
    strikes = torch.linspace(80, 120, 5, device=device)

    def price(spot):
        spot = spot.detach().requires_grad_()
        shocks = torch.randn(256, 1, 1, device=device)
        shocks = torch.cat((shocks, -shocks))
        paths = spot[:, None] * torch.exp(-0.02 + 0.2 * shocks)
        value = (paths - strikes).relu().mean(0) * math.exp(-0.01)
        (delta,) = torch.autograd.grad(value.sum(), spot)
        return value.detach(), delta

    return price, (torch.rand(4, device=device) * 20 + 90,)


def covariance_of_returns(device):
    weights = torch.full((5,), 0.2, device=device)

    def risk(returns):
        covariance = torch.cov(returns.T)  # guilty: it checks its divisor on the host
        return (weights @ covariance @ weights).sqrt()

    return risk, (torch.randn(60, 5, device=device) * 0.01,)


def shrunk_covariance_by_hand(device):
    # Plain matrix products, one trace.
    def shrink(returns):
        centered = returns - returns.mean(0)
        sample = centered.T @ centered / (len(returns) - 1)
        target = torch.eye(5, device=device) * sample.diagonal().mean()
        return torch.lerp(sample, target, (target - sample).norm().clamp(max=0.5))

    return shrink, (torch.randn(60, 5, device=device) * 0.01,)


class Desk:
    fees = (0.001, 0.001, 0.001, 0.001, 0.003, 0.01, 0.01)

    @property
    def fee(self):
        return self.fees[datetime.date.today().weekday()]  # guilty: the day of the capture

    def rebalance(self, weights):
        traded = weights.diff(dim=0).abs()
        return weights[1:].sum(1) - self.fee * traded.sum(1)  # guilty: its fee


def fee_depends_on_the_weekday(device):
    return Desk().rebalance, (torch.rand(10, 4, device=device),)


def levels_of_an_order_book(device):
    # Every result has a fixed size, `nonzero_static` too.
    edges = torch.linspace(0, 1, 17, device=device)

    def book(prices, sizes):
        level = torch.searchsorted(edges, prices).clamp(max=16)
        depth = torch.zeros(17, device=device).scatter_add_(0, level, sizes)
        filled = torch.nonzero_static(depth > 0.5, size=4, fill_value=16)[:, 0]
        return depth.cumsum(0), depth[filled]

    return book, (torch.rand(32, device=device), torch.rand(32, device=device))


def collisions_of_all_pairs(device):
    index = torch.arange(6, device=device)

    def collide(points):
        # It selects by a mask.
        pairs = torch.combinations(index, 2)  # guilty: the host must know how many there are
        return (points[pairs[:, 0]] - points[pairs[:, 1]]).norm(dim=1).clamp(max=1)

    return collide, (torch.randn(6, 3, device=device),)


def collisions_of_the_upper_triangle(device):
    # innocent: `triu_indices` is computed on the device and has a fixed size.
    def collide(points):
        first, second = torch.triu_indices(6, 6, 1, device=device)
        return (points[first] - points[second]).norm(dim=1).clamp(max=1)

    return collide, (torch.randn(6, 3, device=device),)


def solver_adapts_its_step(device):
    field = nn.Linear(4, 4, device=device).requires_grad_(False)

    def advance(y):
        h = 0.1
        for _ in range(3):
            slope = field(y)
            other = field(y + h * slope)
            error = (h * (other - slope) / 2).abs().amax()
            y = y + h * (slope + other) / 2
            h *= min(2.0, 0.9 * math.pow(error + 1e-6, -0.2))  # guilty: it reads the error
        return y

    return advance, (torch.randn(8, 4, device=device),)


def solver_adapts_its_step_on_the_device(device):
    # The step is a tensor.
    field = nn.Linear(4, 4, device=device).requires_grad_(False)

    def advance(y):
        h = torch.full((), 0.1, device=device)
        for _ in range(3):
            slope = field(y)
            other = field(y + h * slope)
            error = (h * (other - slope) / 2).abs().amax()
            accepted = error < 0.5
            y = torch.where(accepted, y + h * (slope + other) / 2, y)
            h = h * (0.9 * (error + 1e-6) ** -0.2).clamp(0.5, 2.0)
        return y

    return advance, (torch.randn(8, 4, device=device),)


def grid_between_two_quotes(device):
    def grid(quotes):
        low, high = quotes.aminmax()
        nodes = torch.linspace(low, high, 16, device=device)  # guilty: linspace reads both ends
        return torch.exp(-(nodes[:, None] - quotes).square()).mean(1)

    return grid, (torch.rand(7, device=device),)


def grid_from_a_unit_grid(device):
    # The ends stay on the device.
    unit = torch.linspace(0, 1, 16, device=device)

    def grid(quotes):
        low, high = quotes.aminmax()
        nodes = torch.lerp(low, high, unit)
        return torch.exp(-(nodes[:, None] - quotes).square()).mean(1)

    return grid, (torch.rand(7, device=device),)


def every_other_joint(device):
    limits = torch.ones(3, device=device)

    def clamp(joints):
        legs = joints[:, range(0, 6, 2)]  # guilty: a range becomes an index that is copied
        return legs.clamp(-limits, limits).sum(1)

    return clamp, (torch.randn(16, 6, device=device),)


def every_other_joint_by_a_slice(device):
    # A view.
    limits = torch.ones(3, device=device)

    def clamp(joints):
        left, right = joints[:, slice(0, 6, 2)], joints[..., 1::2]
        x, y, z = (left - right).clamp(-limits, limits).unbind(1)
        return torch.stack((x + y, z))

    return clamp, (torch.randn(16, 6, device=device),)


class GainSchedule(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("gains", torch.tensor([1.0, 0.5, 0.25], device=device))
        self.register_buffer("phase", torch.zeros((), dtype=torch.long, device=device))

    def forward(self, error):
        gain = self.gains[self.phase]  # guilty: an index without dimensions is read
        self.phase.add_(1).remainder_(3)
        return error * gain


def gain_of_a_phase(device):
    return GainSchedule(device), (torch.randn(6, device=device),)


class GainTable(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("gains", torch.tensor([1.0, 0.5, 0.25], device=device))
        self.register_buffer("phase", torch.zeros(1, dtype=torch.long, device=device))

    def forward(self, error):
        gain = self.gains[self.phase]
        self.phase.add_(1).remainder_(len(self.gains))
        return error * gain


def gain_of_a_phase_with_a_dimension(device):
    # An index with one dimension is a gather.
    return GainTable(device), (torch.randn(6, device=device),)
