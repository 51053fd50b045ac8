"""Numerics: solvers, transforms, random walks, filters, graphs as matrices."""

import math
from typing import ClassVar

import torch


def implicit_step_by_solve(device):
    eye = torch.eye(6, device=device)

    def f(jacobian, u):
        # solve() copies the error code of the factorization to the host and raises if it is set.
        return torch.linalg.solve(eye - 0.05 * jacobian, u)  # guilty: checks for singular matrices

    return f, (torch.randn(6, 6, device=device), torch.randn(6, 2, device=device))


def implicit_step_by_a_cholesky_factor(device):
    eye = torch.eye(6, device=device)

    def f(root, u):
        # cholesky_ex() leaves the error code on the device; nobody looks at it.
        factor, info = torch.linalg.cholesky_ex(eye + root @ root.t())
        half = torch.linalg.solve_triangular(factor, u, upper=False)
        solved = torch.linalg.solve_triangular(factor.t(), half, upper=True)
        return torch.where(info > 0, u, solved)

    return f, (torch.randn(6, 6, device=device), torch.randn(6, 2, device=device))


def histogram_over_its_own_range(device):
    def f(samples):
        # Without min and max, both are read on the host to make the bins.
        counts = torch.histc(samples, bins=8)  # guilty: reads the range
        density = counts / counts.sum()
        return -(density * (density + 1e-9).log()).sum()

    return f, (torch.randn(100, device=device),)


def histogram_by_scatter(device):
    def f(samples):
        low, high = samples.aminmax()
        place = ((samples - low) / (high - low) * 8).long().clamp_(0, 7)
        counts = torch.zeros(8, device=samples.device).index_add_(
            0, place, torch.ones_like(samples)
        )
        edges = torch.lerp(low, high, torch.arange(9, device=samples.device) / 8)
        return counts, edges

    return f, (torch.randn(100, device=device),)


class Quasi:
    def __init__(self):
        self.engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=5)

    def __call__(self, center):
        # The engine computes on the CPU; its points are copied from pageable memory.
        points = self.engine.draw(16).to(center.device)  # guilty: copies from the host
        return torch.exp(-(points - center).square().sum(1)).mean()


def integral_over_quasirandom_points(device):
    return Quasi(), (torch.rand(2, device=device),)


def option_with_antithetic_paths(device):
    def f(spot, volatility):
        z = torch.randn(4, 32, device=spot.device)
        z = torch.cat([z, -z], 1)
        drift = (0.02 - 0.5 * volatility**2) / 4
        paths = spot * torch.exp((drift + volatility * z * 0.5).cumsum(0))
        payoff = torch.relu(paths.mean(0) - spot)
        worst = paths.amin(0).sort().values[:3].mean()
        return payoff.mean() * math.exp(-0.02), payoff.std() / 8, worst

    return f, (torch.full((), 100.0, device=device), torch.full((), 0.2, device=device))


class Welford:
    def __init__(self, device):
        self.count = 0
        self.mean = torch.zeros(5, device=device)
        self.spread = torch.zeros(5, device=device)

    def __call__(self, x):
        self.count += 1  # guilty: counts on the host
        delta = x - self.mean
        self.mean += delta / self.count  # guilty: the count of the capture
        self.spread.addcmul_(delta, x - self.mean)
        return self.spread / max(self.count - 1, 1)  # guilty: here too


def variance_of_a_stream(device):
    return Welford(device), (torch.randn(5, device=device),)


def pairs_of_particles(device):
    def f(positions):
        index = torch.arange(len(positions), device=positions.device)
        # combinations() selects from a mesh with a mask (masked_select).
        pairs = torch.combinations(index)  # guilty: selects with a mask
        gap = positions[pairs[:, 0]] - positions[pairs[:, 1]]
        inverse = (gap.square().sum(1) + 0.1).pow(-3)
        return (inverse.square() - inverse).sum()

    return f, (torch.randn(6, 3, device=device),)


class Kalman:
    def __init__(self, device):
        self.state = torch.zeros(3, device=device)
        self.cov = torch.eye(3, device=device)
        self.move = torch.randn(3, 3, device=device) * 0.4

    def __call__(self, seen):
        state = self.move @ self.state  # guilty: the state of the capture
        cov = self.move @ self.cov @ self.move.t() + 0.1 * torch.eye(
            3, device=seen.device
        )  # guilty: here too
        gain = cov[:, 0] / (cov[0, 0] + 0.5)
        # Other tensors each time; a replay predicts from those of the capture.
        self.state = state + gain * (seen - state[0])  # guilty: rebinds
        self.cov = cov - torch.outer(gain, cov[0])  # guilty: rebinds
        return self.state.clone()


def filter_with_a_rebound_state(device):
    return Kalman(device), (torch.randn((), device=device),)


class TwoModels:
    def __init__(self, device):
        self.side = torch.cuda.Stream()
        self.weights = torch.randn(2, 8, 8, device=device)
        self.spare = torch.zeros(8, device=device)

    def __call__(self, x):
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            # The stream joins the capture and is never waited for: the capture cannot end.
            self.spare.copy_(torch.tanh(self.weights[1] @ x))  # guilty: work that does not join
        return torch.tanh(self.weights[0] @ x)


def member_left_on_its_stream(device):
    return TwoModels(device), (torch.randn(8, device=device),)


class Driven:
    def __init__(self, device):
        self.time = torch.zeros(())
        self.u = torch.zeros(12, device=device)

    def __call__(self, source):
        lap = torch.roll(self.u, 1) + torch.roll(self.u, -1) - 2 * self.u
        # A CPU scalar in an op on the device becomes an argument of the kernel.
        self.u += 0.1 * lap + torch.sin(self.time) * source  # guilty: the time of the capture
        self.time += 0.3  # guilty: a tensor on the CPU does not move in a replay
        return self.u.clone()


def heat_driven_by_a_cpu_clock(device):
    return Driven(device), (torch.randn(12, device=device),)


def conjugate_gradients_of_a_fixed_length(device):
    def f(a, b):
        a = a @ a.t() + torch.eye(len(a), device=a.device)
        x, r = torch.zeros_like(b), b.clone()
        p, old = r.clone(), r.dot(r)
        for _ in range(4):
            ap = a @ p
            alpha = old / p.dot(ap)
            x = torch.addcmul(x, alpha, p)
            r -= alpha * ap
            new = r.dot(r)
            p.mul_(new / old).add_(r)
            old = new
        return x, old.sqrt()

    return f, (torch.randn(6, 6, device=device), torch.randn(6, device=device))


def poisson_by_fourier(device):
    def f(rho):
        k = torch.fft.fftfreq(8, d=1 / 8, device=rho.device)
        kr = torch.fft.rfftfreq(8, d=1 / 8, device=rho.device)
        squares = k[:, None] ** 2 + kr[None, :] ** 2
        # A number for a single element is copied from the host, not filled.
        squares[0, 0] = 1.0  # guilty: copies the number from pageable memory
        modes = torch.fft.rfft2(rho) / squares
        modes[0, 0] = 0  # guilty: here too
        return torch.fft.irfft2(modes, s=rho.shape)

    return f, (torch.randn(8, 8, device=device),)


def shortest_paths_in_place(device):
    def f(weights):
        distance = weights.clone()
        distance.fill_diagonal_(0)
        for via in range(len(weights)):
            through = distance[:, via, None] + distance[None, via]
            torch.minimum(distance, through, out=distance)
        return distance, distance.isinf().any()

    weights = torch.rand(6, 6, device=device)
    return f, (weights.masked_fill_(weights > 0.7, float("inf")),)


class Overlapping:
    _windows: ClassVar = {}

    def window(self, x, size):
        key = (x.device.type, x.dtype, size)
        try:
            return self._windows[key]
        except KeyError:
            return self._windows.setdefault(
                key, torch.hann_window(size, device=x.device, dtype=x.dtype)
            )

    def __call__(self, x):
        window = self.window(x, 8)
        frames = x.unfold(0, 8, 4) * window
        spectrum = torch.fft.rfft(frames)
        spectrum *= (spectrum.abs() > spectrum.abs().mean()).to(x.dtype)
        back = torch.fft.irfft(spectrum, n=8) * window
        out = torch.zeros_like(x)
        for number, frame in enumerate(back):
            out[number * 4 : number * 4 + 8] += frame
        return out


def denoised_by_overlapping_frames(device):
    return Overlapping(), (torch.randn(32, device=device),)


def ranks_of_pages(device):
    source = torch.arange(20, device=device) % 6
    target = (torch.arange(20, device=device) * 7 + 1) % 6

    def f(jump):
        degree = torch.zeros(6, device=jump.device).index_add_(
            0, source, torch.ones_like(source, dtype=jump.dtype)
        )
        rank = torch.full_like(jump, 1 / 6)
        for _ in range(5):
            share = (rank / degree.clamp(min=1))[source]
            rank = 0.15 * jump + 0.85 * torch.zeros_like(rank).scatter_add_(0, target, share)
        return rank / rank.sum()

    return f, (torch.rand(6, device=device),)
