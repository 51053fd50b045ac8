"""Adversarial attack: one step of PGD is a graph; every batch begins with a new perturbation."""

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
            self._step()

    def _step(self):
        loss = nn.functional.cross_entropy(self.model(self.images + self.delta), self.labels)
        (gradient,) = torch.autograd.grad(loss, self.delta)
        with torch.no_grad():
            self.delta.add_(gradient.sign(), alpha=self.rate).clamp_(-self.radius, self.radius)

    def __call__(self, images, labels, steps=5):
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.delta = torch.zeros_like(self.images, requires_grad=True)  # guilty: another tensor
        for _ in range(steps):
            self.graph.replay()
        return (self.images + self.delta).detach()


torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).cuda().requires_grad_(False)
attack = Attack(model, (8, 1, 4, 4))
moved = []
for _ in range(2):
    images = torch.rand(8, 1, 4, 4, device="cuda")
    labels = torch.randint(4, (8,), device="cuda")
    moved.append((attack(images, labels) - images).abs().max().item())
print(f"{max(moved):.2f}")  # eager: 0.10
