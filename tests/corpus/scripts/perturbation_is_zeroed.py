"""Adversarial attack: one step of PGD is a graph; restarts draw their perturbation in place."""

import torch
from torch import nn


class Attack:
    def __init__(self, model, shape, radius=0.1, rate=0.02):
        self.model, self.radius, self.rate = model, radius, rate
        self.images = torch.zeros(shape, device="cuda")
        self.labels = torch.zeros(shape[0], dtype=torch.int64, device="cuda")
        self.delta = torch.zeros(shape, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._step()

    def _step(self):
        moved = self.model(self.images + self.delta)
        losses = nn.functional.cross_entropy(moved, self.labels, reduction="none")
        (gradient,) = torch.autograd.grad(losses.sum(), self.delta)
        with torch.no_grad():
            self.delta.add_(gradient.sign(), alpha=self.rate).clamp_(-self.radius, self.radius)
        return losses.detach()

    def __call__(self, images, labels, steps=5, restarts=2):
        self.images.copy_(images)
        self.labels.copy_(labels)
        worst, found = torch.full_like(self.loss, -1.0), images.clone()
        for _ in range(restarts):
            with torch.no_grad():
                self.delta.uniform_(-self.radius, self.radius)
            for _ in range(steps):
                self.graph.replay()
            better = self.loss > worst
            worst = torch.where(better, self.loss, worst)
            found[better] = (self.images + self.delta).detach()[better]
        return found


torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).cuda().requires_grad_(False)
attack = Attack(model, (8, 1, 4, 4))
within = []
for _ in range(2):
    images = torch.rand(8, 1, 4, 4, device="cuda")
    labels = torch.randint(4, (8,), device="cuda")
    within.append((attack(images, labels) - images).abs().max().item() < 0.101)
print(all(within))  # eager: True
