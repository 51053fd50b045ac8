"""A graph evaluates adapted weights, but each adaptation makes another dict of them."""

import torch
from torch import nn
from torch.func import functional_call, grad


class Adaptation:
    def __init__(self, model, rate=0.05):
        self.model, self.rate = model, rate
        self.start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.weights = dict(self.start)

    def loss(self, weights, x, y):
        return (functional_call(self.model, weights, (x,)) - y).square().mean()

    def adapt(self, x, y, steps=3):
        weights = self.start
        for _ in range(steps):
            slopes = grad(self.loss)(weights, x, y)
            weights = {name: w - self.rate * slopes[name] for name, w in weights.items()}
        self.weights = weights  # <- metadata-address-changed

    def predict(self, x):
        return functional_call(self.model, self.weights, (x,))  # <- metadata-address-changed


torch.manual_seed(8)
model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 1)).cuda()
task = Adaptation(model)
query = torch.linspace(-3, 3, 64, device="cuda")[:, None]

with torch.no_grad():
    for _ in range(3):
        task.predict(query)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = task.predict(query)

errors = []
for phase in (0.0, 0.7, 1.4):
    support = torch.rand(10, 1, device="cuda") * 6 - 3
    task.adapt(support, torch.sin(support + phase))  # <- metadata-address-changed
    graph.replay()
    errors.append((answer - torch.sin(query + phase)).square().mean().item())
print(errors)
