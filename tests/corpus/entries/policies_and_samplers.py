"""Reinforcement learning, diffusion, augmentation and search: code that draws and decides."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torch.func import functional_call, grad, vmap
from torch.nn import functional as fn


class _Priorities:
    def __init__(self, size: int, device: str) -> None:
        self.values = torch.rand(size, device=device) + 0.1
        self._beta = 0.4

    @property
    def beta(self) -> float:
        self._beta = min(1.0, self._beta + 1e-3)  # guilty: annealed by each read on the host
        return self._beta

    def weights(self) -> torch.Tensor:
        p = self.values / self.values.sum()
        w = (p.numel() * p) ** -self.beta  # guilty: the beta of the capture
        return w / w.max()


def prioritized_replay(device: str) -> Callable[[], torch.Tensor]:
    memory = _Priorities(64, device)
    critic = nn.Linear(8, 1).to(device)
    states = torch.randn(64, 8, device=device)
    targets = torch.randn(64, device=device)

    def step() -> torch.Tensor:
        critic.zero_grad(set_to_none=True)
        error = critic(states).squeeze(-1) - targets
        loss = (memory.weights() * error.square()).mean()
        loss.backward()
        with torch.no_grad():
            for p in critic.parameters():
                p.sub_(p.grad, alpha=0.01)
            memory.values.copy_(error.abs() + 1e-3)
        return loss.detach()

    return step


def explores_less_with_time(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    network = nn.Linear(8, 4).to(device)
    started = time.monotonic()

    @torch.no_grad()
    def act(observation: torch.Tensor) -> torch.Tensor:
        elapsed = time.monotonic() - started  # guilty: a clock of the host
        epsilon = 0.05 + 0.9 * math.exp(-elapsed / 0.5)  # guilty: computed from the clock
        greedy = network(observation).argmax(-1)
        anything = torch.randint(4, greedy.shape, device=device)
        explore = torch.rand(greedy.shape, device=device) < epsilon  # guilty: frozen epsilon
        return torch.where(explore, anything, greedy)

    return act, (torch.randn(256, 8, device=device),)


def temperature_from_a_thread(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    settings: queue.Queue[float] = queue.Queue(maxsize=2)

    def anneal() -> None:
        temperature = 4.0
        while True:
            settings.put(temperature)  # guilty: another thread writes the number
            temperature = max(0.5, temperature * 0.95)  # guilty: and lowers it

    threading.Thread(target=anneal, daemon=True).start()

    def soften(logits: torch.Tensor) -> torch.Tensor:
        temperature = settings.get()  # guilty: a number per call
        return fn.softmax(logits / temperature, -1)  # guilty: the temperature of the capture

    return soften, (torch.randn(16, 10, device=device),)


def _timesteps(count: int) -> Iterator[int]:
    while True:
        yield from reversed(range(count))  # guilty: the next step of the sampler


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv1d(3, 3, 3, padding=1)
        self.register_buffer("alpha_bar", torch.linspace(0.99, 0.01, 50))
        self.steps = _timesteps(50)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = next(self.steps)  # guilty: an index that the host advances
        a = self.alpha_bar[t]  # guilty: always the element of the capture
        noise = self.net(x)
        return (x - (1 - a).sqrt() * noise) / a.sqrt()


def ddim_with_a_generator(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _Denoiser().to(device), (torch.randn(2, 3, 32, device=device),)


class _NoiseLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv1d(3, 3, 3, padding=1)
        self.register_buffer("alpha_bar", torch.linspace(0.99, 0.01, 50))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = torch.randint(len(self.alpha_bar), (x.shape[0],), device=x.device)
        noise = torch.randn_like(x)
        a = self.alpha_bar[t][:, None, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        return fn.mse_loss(self.net(noisy), noise)


def ddpm_loss(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return _NoiseLoss().to(device), (torch.randn(8, 3, 32, device=device),)


def squashed_gaussian_policy(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Linear(8, 4)

        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mean, log_std = self.trunk(observation).chunk(2, -1)
            base = Normal(mean, log_std.clamp(-5, 2).exp())  # guilty: validates on the host
            policy = Independent(TransformedDistribution(base, TanhTransform(cache_size=1)), 1)
            action = policy.rsample()
            return action, policy.log_prob(action)  # guilty: validates the sample on the host

    return Actor().to(device), (torch.randn(32, 8, device=device),)


def squashed_gaussian_policy_unchecked(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Linear(8, 4)

        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mean, log_std = self.trunk(observation).chunk(2, -1)
            base = Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
            raw = base.rsample()
            # log(1 - tanh(x)^2), in the stable form
            squash = 2 * (math.log(2) - raw - fn.softplus(-2 * raw))
            return raw.tanh(), (base.log_prob(raw) - squash).sum(-1)

    return Actor().to(device), (torch.randn(32, 8, device=device),)


def mixup_with_numpy(
    device: str,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    draw = np.random.default_rng(3)
    model = nn.Linear(16, 4).to(device)

    def forward(x: torch.Tensor) -> torch.Tensor:
        mix = float(draw.beta(0.4, 0.4))  # guilty: drawn by the host
        mixed = torch.lerp(x, x.flip(0), mix)  # guilty: the draw of the capture
        return model(mixed).square().mean()

    return forward, (torch.randn(8, 16, device=device),)


def backtracking_line_search(device: str) -> Callable[[], torch.Tensor]:
    point = torch.randn(12, device=device)
    matrix = torch.randn(12, 12, device=device)

    def objective(x: torch.Tensor) -> torch.Tensor:
        return (matrix @ x).square().sum() + x.abs().sum()

    slope = torch.func.grad_and_value(objective)

    def step() -> torch.Tensor:
        direction, value = slope(point)
        length, squared = 1.0, direction.square().sum()
        while objective(point - length * direction) > value - length * squared / 2:  # guilty: loop
            length *= 0.5
        point.sub_(direction, alpha=length)
        return value

    return step


def speech_loss(device: str) -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Recognizer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, 12)
            self.register_buffer("labels", torch.randint(1, 12, (4, 6)))
            self.register_buffer("frames", torch.tensor([30, 28, 25, 30]))
            self.register_buffer("lengths", torch.tensor([6, 5, 4, 6]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.head(x).log_softmax(-1)
            return fn.ctc_loss(  # guilty: copies both lengths to the host
                scores, self.labels, self.frames, self.lengths, zero_infinity=True
            )

    return Recognizer().to(device), (torch.randn(30, 4, 16, device=device),)


def private_gradients(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    x = torch.randn(32, 10, device=device)
    y = torch.randn(32, 1, device=device)

    def loss_of(
        weights: dict[str, torch.Tensor], sample: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        return fn.mse_loss(functional_call(model, weights, (sample[None],)), target[None])

    per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))

    def step() -> torch.Tensor:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        grads = per_sample(weights, x, y)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        clip = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        for name, g in grads.items():
            mean = torch.einsum("b,b...->...", clip, g) / len(x)
            weights[name].sub_(mean + 0.01 * torch.randn_like(mean), alpha=0.1)
        return norm.mean()

    return step


def generalized_advantages(
    device: str,
) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    def advantages(
        rewards: torch.Tensor, values: torch.Tensor, going: torch.Tensor
    ) -> torch.Tensor:
        last = torch.zeros_like(rewards[0])
        result = torch.empty_like(rewards)
        for t in reversed(range(len(rewards))):
            delta = rewards[t] + 0.99 * values[t + 1] * going[t] - values[t]
            last = delta + 0.99 * 0.95 * going[t] * last
            result[t] = last
        return (result - result.mean()) / (result.std() + 1e-8)

    rewards = torch.randn(12, 4, device=device)
    going = (torch.rand(12, 4, device=device) > 0.1).float()
    return advantages, (rewards, torch.randn(13, 4, device=device), going)


def target_network(device: str) -> Callable[[], torch.Tensor]:
    online, target = nn.Linear(6, 3).to(device), nn.Linear(6, 3).to(device)
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.RMSprop(online.parameters(), lr=rate, capturable=True)
    now, later = torch.randn(32, 6, device=device), torch.randn(32, 6, device=device)
    actions = torch.randint(3, (32, 1), device=device)
    reward = torch.randn(32, device=device)
    names = {id(p): name for name, p in online.named_parameters()}

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        best = online(later).argmax(1, keepdim=True)
        goal = reward + 0.99 * target(later).gather(1, best).squeeze(1)
        loss = fn.smooth_l1_loss(online(now).gather(1, actions).squeeze(1), goal.detach())
        loss.backward()
        optimizer.step()
        slow = dict(target.named_parameters())
        with torch.no_grad():
            for p in online.parameters():
                slow[names[id(p)]].lerp_(p, 0.005)
        return loss.detach()

    return step
