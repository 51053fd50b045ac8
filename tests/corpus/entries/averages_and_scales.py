"""Training steps: moving averages, loss scales, clipping, optimizers written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn
from torch.optim.swa_utils import AveragedModel


@dataclass(frozen=True)
class _Progress:
    updates: int = 0

    @property
    def decay(self) -> float:
        return min(0.999, (1 + self.updates) / (10 + self.updates))  # guilty: decay of a host count


class _RampedAverage:
    def __init__(self, model: nn.Module) -> None:
        self.progress = _Progress()
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.progress = replace(
            self.progress,
            updates=self.progress.updates + 1,  # guilty: counted by the host
        )
        decay = self.progress.decay  # guilty: a host number that grows
        for average, p in zip(self.shadow, model.parameters(), strict=True):
            average.lerp_(p, 1 - decay)  # guilty: the weight of the capture in each replay


def ramped_average(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 4).to(device)
    average = _RampedAverage(model)
    x = torch.randn(32, 16, device=device)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.05)
        average.update(model)
        return loss.detach()

    return step


class _DeviceAverage(nn.Module):
    def __init__(self, model: nn.Module, device: str) -> None:
        super().__init__()
        self.register_buffer("updates", torch.zeros((), device=device))
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = torch.clamp((1 + self.updates) / (10 + self.updates), max=0.999)
        for average, p in zip(self.shadow, model.parameters(), strict=True):
            average.mul_(decay).add_(p * (1 - decay))


def ramped_average_on_the_device(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 4).to(device)
    average = _DeviceAverage(model, device)
    x = torch.randn(32, 16, device=device)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.05)
        average.update(model)
        return loss.detach()

    return step


def stochastic_weight_averaging(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1)).to(device)
    averaged = AveragedModel(model, device=device)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    x = torch.randn(32, 16, device=device)
    y = torch.randn(32, 1, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = fn.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)  # guilty: `if self.n_averaged == 0` reads a device tensor
        return loss.detach()

    return step


def scaled_loss(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(16, 32, device=device)
    y = torch.randint(8, (16,), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = fn.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # guilty: found_inf.item() decides whether to step
        scaler.update()
        return loss.detach()

    return step


def scaled_loss_with_a_fused_optimizer(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    rate = torch.tensor(1e-3, device=device)
    # The fused kernel reads the scale and found_inf on the device.
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(16, 32, device=device)
    y = torch.randint(8, (16,), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, cache_enabled=False):
            loss = fn.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


class _Lion(torch.optim.Optimizer):
    def __init__(self, params: Any, rate: torch.Tensor, halve_every: int = 500) -> None:
        super().__init__(params, {"rate": rate, "halve_every": halve_every})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                    state["step"] = 0
                state["step"] += 1  # guilty: a step that only the host counts
                shrink = 0.5 ** (state["step"] // group["halve_every"])  # guilty: frozen
                direction = torch.lerp(p.grad, state["momentum"], 0.9).sign_()
                p.sub_(direction * group["rate"] * shrink)  # guilty: the shrink of the capture
                state["momentum"].lerp_(p.grad, 0.01)


def lion_that_halves_its_rate(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(24, 6).to(device)
    optimizer = _Lion(model.parameters(), torch.tensor(1e-3, device=device))
    x = torch.randn(48, 24, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - 1).abs().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class _DeviceAdam:
    def __init__(self, params: list[torch.Tensor], rate: torch.Tensor) -> None:
        self.params, self.rate = params, rate
        self.count = torch.zeros((), device=rate.device)
        self.first = [torch.zeros_like(p) for p in params]
        self.second = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        unbias_first = 1 - 0.9**self.count
        unbias_second = 1 - 0.999**self.count
        for p, m, v in zip(self.params, self.first, self.second, strict=True):
            m.lerp_(p.grad, 0.1)
            v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            p.sub_(self.rate * (m / unbias_first) / ((v / unbias_second).sqrt() + 1e-8))


def adam_by_hand(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(24, 6).to(device)
    optimizer = _DeviceAdam(list(model.parameters()), torch.tensor(1e-3, device=device))
    x = torch.randn(48, 24, device=device)

    def step() -> torch.Tensor:
        for p in model.parameters():
            p.grad = None
        loss = (model(x) - 1).abs().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def clipped_and_checked(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 16).to(device)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    x = torch.randn(32, 16, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).logsumexp(-1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(
            model.parameters(),
            1.0,
            error_if_nonfinite=True,  # guilty: the host asks whether the norm is finite
        )
        optimizer.step()
        return loss.detach()

    return step


def skips_nonfinite_steps(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 16).to(device)
    rate = torch.tensor(1e-2, device=device)
    x = torch.randn(32, 16, device=device)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(x).logsumexp(-1).mean()
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        norm = nn.utils.get_total_norm(grads)
        keep = torch.isfinite(norm)
        with torch.no_grad():
            for p, grad in zip(model.parameters(), grads, strict=True):
                p.sub_(torch.where(keep, grad, 0.0) * rate)
        return torch.where(keep, loss, 0.0).detach()

    return step


@dataclass
class _Trainer:
    model: nn.Module
    accumulate: int = 4
    epoch: int = 0
    seen: int = 0

    @property
    def applies(self) -> bool:
        return (self.epoch * 1000 + self.seen) % self.accumulate == 0  # guilty: each fourth call

    def fit(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1  # guilty: the host counts micro-batches
        loss = self.model(x).pow(2).mean() / self.accumulate
        loss.backward()
        if self.applies:  # guilty: the branch of the capture
            with torch.no_grad():
                for p in self.model.parameters():
                    p.sub_(p.grad, alpha=0.1)
                    p.grad.zero_()
        return loss.detach()


def accumulates_over_calls(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(12, 3).to(device)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    trainer = _Trainer(model)
    x = torch.randn(8, 12, device=device)
    return lambda: trainer.fit(x)


def accumulates_within_a_call(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(12, 3).to(device)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, fused=True)
    x = torch.randn(32, 12, device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for number, chunk in enumerate(x.chunk(4), 1):
            loss = model(chunk).pow(2).mean() / 4
            loss.backward()
            total += loss.detach()
            if number % 4 == 0:
                optimizer.step()
        return total

    return step


def _focal(logits: torch.Tensor, target: torch.Tensor, gamma: float) -> torch.Tensor:
    nll = fn.cross_entropy(logits, target, reduction="none")
    return ((1 - torch.exp(-nll)) ** gamma * nll).mean()  # guilty: gamma is a kernel argument


def focal_loss_that_sharpens(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 5).to(device)
    x = torch.randn(32, 16, device=device)
    y = torch.randint(5, (32,), device=device)
    history: list[torch.Tensor] = []

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        criterion = partial(_focal, gamma=5.0 / (1 + len(history)))  # guilty: length of a list
        loss = criterion(model(x), y)  # guilty: the gamma of the capture
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        history.append(loss.detach())  # guilty: replays append nothing
        return loss.detach()

    return step


@dataclass(frozen=True)
class _LossConfig:
    smoothing: float = 0.1
    weight: float = 1.0


def loss_from_a_config(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 5).to(device)
    x = torch.randn(32, 16, device=device)
    y = torch.randint(5, (32,), device=device)
    base = _LossConfig()

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        config = replace(base, weight=base.weight * 0.5)  # the same in every call
        criterion = partial(fn.cross_entropy, label_smoothing=config.smoothing)
        loss = config.weight * criterion(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    return step


def gradient_hook_that_decays(device: str) -> Callable[[], torch.Tensor]:
    weight = torch.randn(16, 16, device=device, requires_grad=True)
    x = torch.randn(8, 16, device=device)
    state = {"noise": 1.0}
    weight.register_hook(
        lambda grad: grad * state["noise"]  # guilty: a host number that decays
    )

    def step() -> torch.Tensor:
        weight.grad = None
        loss = (x @ weight).tanh().square().mean()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        state["noise"] *= 0.999  # guilty: replays do not decay it
        return loss.detach()

    return step


def cycles_through_batches(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Linear(16, 5).to(device)
    data = [
        (torch.randn(8, 16, device=device), torch.randint(5, (8,), device=device)) for _ in range(4)
    ]
    loader: Iterator[tuple[torch.Tensor, torch.Tensor]] = cycle(data)

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        x, y = next(loader)  # guilty: another batch, at another address, in each call
        loss = fn.cross_entropy(model(x), y)  # guilty: the batch of the capture
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    return step


def adversarial_pair(device: str) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)).to(device)
    critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to(device)
    rate = torch.tensor(2e-4, device=device)
    adam = partial(torch.optim.Adam, lr=rate, betas=(0.5, 0.999), capturable=True)
    generator_optimizer = adam(generator.parameters())
    critic_optimizer = adam(critic.parameters())
    real = torch.randn(32, 16, device=device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        critic.requires_grad_(True)
        critic_optimizer.zero_grad(set_to_none=True)
        fake = generator(torch.randn(32, 8, device=device))
        critic_loss = fn.softplus(-critic(real)).mean() + fn.softplus(critic(fake.detach())).mean()
        critic_loss.backward()
        critic_optimizer.step()
        critic.requires_grad_(False)
        generator_optimizer.zero_grad(set_to_none=True)
        generator_loss = fn.softplus(-critic(fake)).mean()
        generator_loss.backward()
        generator_optimizer.step()
        return critic_loss.detach(), generator_loss.detach()

    return step


def bfloat16_regression(device: str) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 1))
    model.to(device)
    rate = torch.tensor(1e-3, device=device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=rate, capturable=True)
    x = torch.randn(64, 32, device=device)
    y = torch.randn(64, 1, device=device)
    warm = math.sqrt(0.5)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            prediction = model(x)
        loss = fn.huber_loss(prediction.float(), y, delta=warm)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
