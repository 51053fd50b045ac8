"""Simulations that swap their buffers, solvers, and work on several streams."""

import itertools

import torch
from torch import nn


def _laplacian(field):
    shifted = [field.roll(shift, dim) for shift in (1, -1) for dim in (0, 1)]
    return sum(shifted) - 4 * field


class Diffusion:
    """Two fields: one is read, the other is written, and they change places."""

    def __init__(self, device):
        self.now, self.next = (torch.rand(8, 8, device=device) for _ in range(2))

    def advance(self):
        self.next.copy_(self.now + 0.1 * _laplacian(self.now))  # guilty: always from the same field
        self.now, self.next = self.next, self.now  # guilty: changes places only when Python runs


def heat_with_swapped_fields(device):
    heat = Diffusion(device)

    def step():
        heat.advance()
        return heat.now.mean(0)

    return step


class Relaxation(Diffusion):
    def advance(self):
        self.next.copy_(self.now + 0.1 * _laplacian(self.now))
        self.now, self.next = self.next, self.now


def heat_swapped_an_even_number_of_times(device):
    """After four steps, both names are where they were."""
    heat = Relaxation(device)

    def step():
        for _ in range(4):
            heat.advance()
        return heat.now.mean(0)

    return step


class Prefetcher:
    """Prepares the next batch on its own stream while the current one is used."""

    def __init__(self, images):
        self.images, self.stream = images, torch.cuda.Stream()
        self.preload()

    def preload(self):
        with torch.cuda.stream(self.stream):
            self.batch = (self.images - self.images.mean()) / self.images.std()

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)  # guilty: its work is not captured
        batch = self.batch
        batch.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


def batches_prefetched_on_a_stream(device):
    model = nn.Linear(6, 3).to(device)
    batches = Prefetcher(torch.randn(8, 6, device=device))

    def step():
        return model(batches.next()).logsumexp(-1).mean().detach()

    return step


def event_recorded_too_early(device):
    side = torch.cuda.Stream()
    weight, head = torch.randn(64, 64, device=device) / 8, torch.randn(64, 8, device=device)

    def forward(x):
        main = torch.cuda.current_stream()
        ready = torch.cuda.Event()
        ready.record(main)  # guilty: before the features are computed
        for _ in range(8):
            x = torch.tanh(x @ weight)
        with torch.cuda.stream(side):
            side.wait_event(ready)
            logits = x @ head  # guilty: does not wait for the last tanh
        main.wait_stream(side)
        return logits

    return forward, (torch.randn(64, 64, device=device),)


def towers_on_two_streams(device):
    user, item = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2))
    user, item, side = user.to(device), item.to(device), torch.cuda.Stream()

    @torch.no_grad()
    def score(users, items):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            right = item(items)
        left = user(users)
        main.wait_stream(side)
        right.record_stream(main)
        return (left * right).sum(-1)

    return score, (torch.randn(5, 8, device=device), torch.randn(5, 8, device=device))


class MultistepSolver(nn.Module):
    """Adams-Bashforth: from the second step on, the derivative of the step before helps."""

    def __init__(self):
        super().__init__()
        self.field = nn.Linear(4, 4)
        self.previous = None

    @torch.no_grad()
    def forward(self, x):
        slope = self.field(x).tanh()
        if self.previous is None:
            combined = slope
        else:
            combined = (
                1.5 * slope - 0.5 * self.previous
            )  # guilty: the slope of the warm-up, forever
        self.previous = slope  # guilty: another tensor for the same name
        return x + 0.1 * combined


def solver_keeps_the_slope_before(device):
    return MultistepSolver().to(device), (torch.randn(3, 4, device=device),)


def runge_kutta_with_fixed_steps(device):
    field = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(device)
    times = [i / 4 for i in range(5)]

    def integrate(x):
        for start, end in itertools.pairwise(times):
            h = end - start
            k1 = field(x) + start
            k2 = field(x + 0.5 * h * k1) + start + 0.5 * h
            k3 = field(x + 0.5 * h * k2) + start + 0.5 * h
            k4 = field(x + h * k3) + end
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x

    return integrate, (torch.randn(3, 4, device=device, requires_grad=True),)
