"""Steps of people who train: agents that relabel, networks that must not forget, quantizers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _GoalReacher:
    """A critic on goals; a part of the batch gets the states that were reached as its goals."""

    def __init__(self, device, goals=3, share=0.5):
        self.critic = nn.Sequential(nn.Linear(2 * goals, 16), nn.ReLU(), nn.Linear(16, 1)).to(
            device
        )
        self.optimizer = torch.optim.SGD(self.critic.parameters(), lr=1e-2)
        self.share = share

    def learn(self, reached, goals):
        reward = -((reached - goals).norm(dim=1, keepdim=True) > 0.5).float()
        loss = functional.mse_loss(self.critic(torch.cat([reached, goals], 1)), reward)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def goals_are_relabeled_by_a_host_permutation(device):
    agent = _GoalReacher(device)

    def step(reached, goals):
        rows = torch.randperm(len(goals))[: int(agent.share * len(goals))]  # guilty: on the host
        goals = goals.clone()
        goals[rows] = reached[rows]  # guilty: indices of the host travel to the device
        return agent.learn(reached, goals)

    return step, (torch.randn(12, 3, device=device), torch.randn(12, 3, device=device))


def goals_are_relabeled_on_the_device(device):
    agent = _GoalReacher(device)

    def step(reached, goals):
        rows = len(goals)
        future = torch.randint(rows, (rows,), device=device)
        relabeled = torch.rand(rows, 1, device=device) < agent.share
        return agent.learn(reached, torch.where(relabeled, reached[future], goals))

    return step, (torch.randn(12, 3, device=device), torch.randn(12, 3, device=device))


class _Anchored:
    """Elastic weight consolidation: important weights are held where an old task left them."""

    def __init__(self, device, strength=5.0):
        self.model = nn.Linear(6, 3).to(device)
        self.anchor = {k: p.detach().clone() for k, p in self.model.named_parameters()}
        self.importance = {k: torch.ones_like(p) for k, p in self.anchor.items()}
        self.strength = strength

    def penalty(self):
        total = 0.0
        for name, p in self.model.named_parameters():
            weight = self.importance[name]  # guilty: the tensors of the capture
            distance = (p - self.anchor[name]).square()
            total = total + (weight * distance).sum()  # guilty: as above
        return 0.5 * self.strength * total

    def gradients(self, x, y):
        loss = functional.cross_entropy(self.model(x), y)
        return loss, torch.autograd.grad(loss + self.penalty(), list(self.model.parameters()))


def importances_are_made_anew(device):
    task = _Anchored(device)

    def step(x, y):
        loss, gradients = task.gradients(x, y)
        with torch.no_grad():
            for (name, p), g in zip(task.model.named_parameters(), gradients, strict=True):
                p.sub_(0.05 * g)
                new = 0.9 * task.importance[name] + 0.1 * g.square()
                task.importance[name] = new  # guilty: replaced
        return loss.detach()

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


def importances_move_in_place(device):
    task = _Anchored(device)

    def step(x, y):
        loss, gradients = task.gradients(x, y)
        with torch.no_grad():
            for (name, p), g in zip(task.model.named_parameters(), gradients, strict=True):
                p.sub_(0.05 * g)
                task.importance[name].lerp_(g.square(), 0.1)
        return loss.detach()

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))


class _SteadyTrainer:
    """Pretraining that leaves out batches whose loss is far above its average."""

    def __init__(self, device):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)).to(device)
        self.momenta = [torch.zeros_like(p) for p in self.model.parameters()]
        self.mean = torch.full((), 5.0, device=device)
        self.skipped = torch.zeros((), dtype=torch.long, device=device)

    def loss(self, x, y):
        return functional.smooth_l1_loss(self.model(x), y)


def spikes_of_the_loss_end_a_step_early(device):
    trainer = _SteadyTrainer(device)

    def step(x, y):
        loss = trainer.loss(x, y)
        if loss > 3 * trainer.mean:  # guilty: the host decides
            trainer.skipped += 1
            return loss.detach()
        gradients = torch.autograd.grad(loss, list(trainer.model.parameters()))
        with torch.no_grad():
            for p, m, g in zip(trainer.model.parameters(), trainer.momenta, gradients, strict=True):
                m.mul_(0.9).add_(g)
                p.sub_(m, alpha=0.01)
            trainer.mean.lerp_(loss.detach(), 0.05)
        return loss.detach()

    return step, (torch.randn(8, 8, device=device), torch.randn(8, 8, device=device))


def spikes_of_the_loss_are_weighed_by_zero(device):
    trainer = _SteadyTrainer(device)

    def step(x, y):
        loss = trainer.loss(x, y)
        gradients = torch.autograd.grad(loss, list(trainer.model.parameters()))
        with torch.no_grad():
            fine = loss <= 3 * trainer.mean
            weight = fine.float()
            for p, m, g in zip(trainer.model.parameters(), trainer.momenta, gradients, strict=True):
                m.copy_(torch.where(fine, 0.9 * m + g, m))
                p.addcmul_(m, weight, value=-0.01)
            trainer.mean.lerp_(loss.detach(), 0.05 * weight)
            trainer.skipped += ~fine
        return loss.detach(), trainer.skipped.clone()

    return step, (torch.randn(8, 8, device=device), torch.randn(8, 8, device=device))


class _ClippedByItsLargest(torch.autograd.Function):
    """Rounds to a grid; its backward clips gradients at a multiple of their own mean."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return torch.round(x / step).clamp(-8, 7) * step

    @staticmethod
    def backward(ctx, gradient):
        x, step = ctx.saved_tensors
        limit = 4 * float(gradient.abs().mean())  # guilty: the host reads in backward
        inside = (x / step).clamp(-8, 7) == x / step
        return gradient.clamp(-limit, limit) * inside, None


def rounding_clips_its_gradient_by_a_number(device):
    weight = torch.randn(6, 6, device=device, requires_grad=True)
    grid = torch.full((), 0.1, device=device)

    def step(x):
        loss = (x @ _ClippedByItsLargest.apply(weight, grid)).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(0.05 * gradient)
        return loss.detach()

    return step, (torch.randn(5, 6, device=device),)


class _LearnedStep(torch.autograd.Function):
    """Learned step size quantization: the step has a gradient as well."""

    @staticmethod
    def forward(ctx, x, step, low, high):
        ctx.save_for_backward(x, step)
        ctx.limits = low, high
        return (x / step).clamp(low, high).round() * step

    @staticmethod
    def backward(ctx, gradient):
        x, step = ctx.saved_tensors
        low, high = ctx.limits
        scaled = x / step
        inside = (scaled >= low) & (scaled <= high)
        rounded = scaled.clamp(low, high).round()
        for_step = torch.where(inside, rounded - scaled, rounded)
        size = (gradient * for_step).sum() / (x.numel() * high) ** 0.5
        return gradient * inside, size.view_as(step), None, None


class _QuantizedLayer(nn.Module):
    def __init__(self, inputs=6, outputs=4, bits=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * 0.3)
        self.low, self.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        start = 2 * self.weight.detach().abs().mean() / self.high**0.5
        self.step = nn.Parameter(start.view(1))

    def forward(self, x):
        return functional.linear(x, _LearnedStep.apply(self.weight, self.step, self.low, self.high))


def steps_of_a_quantizer_are_learned(device):
    return _QuantizedLayer().to(device), (torch.randn(5, 6, device=device),)
