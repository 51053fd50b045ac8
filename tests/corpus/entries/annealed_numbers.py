"""Numbers of Python that are annealed, and some that always come back to the same value."""

import itertools

import torch
from torch import nn
from torch.nn import functional


class AnnealedAutoencoder(nn.Module):
    """The weight of the divergence grows with the number of losses that were recorded."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 6), nn.Linear(3, 8)
        self.losses = []

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
        error = functional.mse_loss(self.decode(z), x)
        loss = error + min(1.0, len(self.losses) / 50) * divergence  # guilty: a number of the host
        self.losses.append(loss.detach())  # guilty: not in a replay
        return loss


def divergence_weighted_by_a_length(device):
    return AnnealedAutoencoder().to(device), (torch.randn(5, 8, device=device),)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None  # guilty: the strength of the capture


class DomainAdversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.domain = nn.Linear(6, 8), nn.Linear(8, 2)
        self.progress = 0.0

    def forward(self, x):
        self.progress = min(1.0, self.progress + 0.01)  # guilty: grows only when Python runs
        return self.domain(
            Reverse.apply(self.features(x).relu(), self.progress)
        )  # guilty: as above


def reversal_that_grows_stronger(device):
    return DomainAdversarial().to(device), (torch.randn(5, 6, device=device),)


class Relaxed(nn.Module):
    """Reading the temperature lowers it."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(6, 4)
        self._temperature = 2.0

    @property
    def temperature(self):
        self._temperature *= 0.98  # guilty: falls only when Python runs
        return self._temperature

    def forward(self, x):
        return torch.softmax(self.logits(x) / self.temperature, -1)  # guilty: a number of the host


def temperature_falls_when_it_is_read(device):
    return Relaxed().to(device), (torch.randn(5, 6, device=device),)


def gumbel_with_a_temperature_on_the_device(device):
    logits = nn.Linear(6, 4).to(device)
    temperature = torch.full((), 2.0, device=device)

    def choose(x):
        scores = logits(x)
        noise = -torch.empty_like(scores).exponential_().log()
        soft = ((scores + noise) / temperature.clone()).softmax(-1)
        hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        temperature.mul_(0.98).clamp_(min=0.5)
        return hard - soft.detach() + soft

    return choose, (torch.randn(5, 6, device=device),)


class Alternating(nn.Module):
    """Dilations alternate; four layers take the cycle around twice."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(4, 4, 3) for _ in range(4))
        self.dilations = itertools.cycle((1, 2))

    def forward(self, x):
        for layer in self.layers:
            dilation = next(self.dilations)
            y = functional.conv1d(x, layer.weight, layer.bias, padding=dilation, dilation=dilation)
            x = x + y.relu()
        return x


def dilations_of_a_whole_cycle(device):
    return Alternating().to(device), (torch.randn(2, 4, 12, device=device),)


class Scaled(nn.Module):
    """The scale is a tensor of the CPU that never changes."""

    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.scale = torch.tensor(width).rsqrt()

    def forward(self, x):
        q = self.project(x)
        return (q @ q.transpose(-1, -2) * self.scale).softmax(-1) @ x


def scale_is_a_constant_of_the_cpu(device):
    return Scaled(8).to(device), (torch.randn(2, 5, 8, device=device),)
