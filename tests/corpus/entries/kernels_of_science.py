"""Solvers, samplers and operators of scientific computing."""

import torch
from torch import nn
from torch.nn import functional


class LinearDynamics(nn.Module):
    """Exact propagation of dx/dt = A x."""

    def __init__(self, width=6, dt=0.1):
        super().__init__()
        self.generator = nn.Parameter(torch.randn(width, width) * 0.1)
        self.dt = dt

    def forward(self, x, steps: int = 4):
        propagator = torch.linalg.matrix_exp(
            self.generator * self.dt
        )  # guilty: chooses its degree on the host
        path = []
        for _ in range(steps):
            x = x @ propagator.mT
            path.append(x)
        return torch.stack(path, 1)


def dynamics_by_a_matrix_exponential(device):
    torch.manual_seed(0)
    return LinearDynamics().to(device), (torch.randn(8, 6, device=device),)


class Metropolis:
    def __init__(self, size, device):
        self.spins = (torch.rand(size, size, device=device) < 0.5).float() * 2 - 1
        row = torch.arange(size, device=device)
        self.even = (row[:, None] + row[None, :]) % 2 == 0
        self.beta = 0.1

    def half(self, mask):
        s = self.spins
        near = s.roll(1, 0) + s.roll(-1, 0) + s.roll(1, 1) + s.roll(-1, 1)
        cost = 2 * s * near
        accept = (torch.rand_like(s) < torch.exp(-self.beta * cost)) & mask  # guilty: one beta
        s.copy_(torch.where(accept, -s, s))

    def sweep(self):
        self.half(self.even)
        self.half(~self.even)
        self.beta = min(self.beta * 1.02, 1.0)  # guilty: annealed on the host
        return self.spins.mean(), torch.exp(
            -self.beta * self.spins.abs()
        ).mean()  # guilty: one beta


def annealed_ising(device):
    torch.manual_seed(0)
    return Metropolis(8, device).sweep


def ising_at_one_temperature(device):
    torch.manual_seed(0)
    spins = torch.randint(0, 2, (16, 16), device=device).float().mul_(2).sub_(1)
    row = torch.arange(16, device=device)
    board = (row[:, None] + row) % 2
    masks = [board == parity for parity in (0, 1)]
    beta = 0.44

    def sweep():
        for mask in masks:
            near = sum(spins.roll(s, d) for s in (1, -1) for d in (0, 1))
            flip = (torch.rand_like(spins) < (-2 * beta * spins * near).exp()) & mask
            spins.mul_(1 - 2 * flip.float())
        return spins.mean(), (spins * spins.roll(1, 0)).mean()

    return sweep


def leading_eigenvector(device):
    torch.manual_seed(0)
    a = torch.randn(12, 12, device=device)
    a = a @ a.mT

    def run(v):
        for _ in range(8):
            v = functional.normalize(a @ v, dim=0)
        if v[0] < 0:  # guilty: reads the sign
            v = -v
        return v, v @ a @ v

    return run, (torch.randn(12, device=device),)


class AdamsBashforth:
    """Burgers' equation by a two-step method."""

    def __init__(self, u, nu=0.05, dt=0.01):
        self.u, self.nu, self.dt = u, nu, dt
        self.previous = self.rate(u)

    def rate(self, u):
        n = u.shape[-1]
        k = torch.fft.rfftfreq(n, 1.0 / n, device=u.device)
        spectrum = torch.fft.rfft(u)
        slope = torch.fft.irfft(1j * k * spectrum, n=n)
        curvature = torch.fft.irfft(-(k**2) * spectrum, n=n)
        return self.nu * curvature - u * slope

    def step(self):
        now = self.rate(self.u)
        self.u.add_(
            1.5 * now - 0.5 * self.previous, alpha=self.dt
        )  # guilty: the previous of the capture
        self.previous = now  # guilty: by name
        return self.u.square().mean()


def burgers_in_two_steps(device):
    torch.manual_seed(0)
    x = torch.arange(32, device=device) * (2 * torch.pi / 32)
    return AdamsBashforth(x.sin()).step


def verlet_with_device_state(device):
    torch.manual_seed(0)
    position = torch.rand(10, 3, device=device) * 4
    velocity = torch.randn(10, 3, device=device) * 0.1
    force = torch.zeros_like(position)
    eye = torch.eye(10, dtype=torch.bool, device=device)
    dt = 0.005

    def forces():
        delta = position[:, None] - position[None, :]
        delta = delta - 4 * torch.round(delta / 4)
        r2 = delta.square().sum(-1).masked_fill(eye, 1.0).clamp(min=0.5)
        scale = (48 * r2**-7 - 24 * r2**-4).masked_fill(eye, 0.0)
        return (scale[..., None] * delta).sum(1)

    force.copy_(forces())

    def step():
        velocity.add_(force, alpha=dt / 2)
        position.add_(velocity, alpha=dt).remainder_(4)
        force.copy_(forces())
        velocity.add_(force, alpha=dt / 2)
        return velocity.square().sum() / 2

    return step


class SpectralConv(nn.Module):
    def __init__(self, channels=4, modes=5):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, 2) * 0.1)
        self.local = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        out = torch.zeros_like(spectrum)
        weight = torch.view_as_complex(self.weight)
        out[..., : self.modes] = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], weight)
        return functional.gelu(torch.fft.irfft(out, n=x.shape[-1]) + self.local(x))


def fourier_operator(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 4, 1), SpectralConv(), SpectralConv(), nn.Conv1d(4, 1, 1))
    return net.to(device), (torch.randn(3, 1, 32, device=device),)


class Jacobi:
    """Heat on a plate; two grids take turns."""

    def __init__(self, size, device):
        self.now = torch.rand(size, size, device=device)
        self.next = self.now.clone()

    def sweep(self):
        a = self.now
        self.next[1:-1, 1:-1] = (a[2:, 1:-1] + a[:-2, 1:-1] + a[1:-1, 2:] + a[1:-1, :-2]) / 4
        self.now, self.next = self.next, self.now

    def solve(self, sweeps=6):
        for _ in range(sweeps):
            self.sweep()
        return self.now.mean()


def jacobi_in_even_sweeps(device):
    torch.manual_seed(0)
    return Jacobi(12, device).solve


class GaussNewton(nn.Module):
    """Fits an exponential by damped steps on the normal equations."""

    def __init__(self, count=20):
        super().__init__()
        self.register_buffer("t", torch.linspace(0, 1, count))
        self.damping = 1e-3

    def forward(self, theta, y):
        for _ in range(3):
            a, b = theta.unbind(-1)
            e = torch.exp(-b[:, None] * self.t)
            residual = a[:, None] * e - y
            jacobian = torch.stack([e, -a[:, None] * self.t * e], -1)
            normal = jacobian.mT @ jacobian
            normal.diagonal(dim1=-2, dim2=-1).add_(self.damping)
            gradient = (jacobian.mT @ residual[..., None]).squeeze(-1)
            step = torch.linalg.solve(normal, gradient)  # guilty: reads whether it is singular
            theta = theta - step
        return theta


def batched_gauss_newton(device):
    torch.manual_seed(0)
    y = torch.rand(6, 20, device=device)
    return GaussNewton().to(device), (torch.ones(6, 2, device=device), y)
