import torch
from torch import nn


class PersonalizedPropagation(nn.Module):
    """Predict, then propagate: ten steps of a random walk with restarts."""

    def __init__(self, inputs, classes, edges, nodes, steps=10, restart=0.1):
        super().__init__()
        self.predict = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, classes))
        self.steps, self.restart = steps, restart
        source, target = edges
        degree = torch.zeros(nodes).index_add_(0, target, torch.ones(target.shape[0]))
        norm = degree.clamp_min(1).rsqrt()
        self.register_buffer("source", source)
        self.register_buffer("target", target)
        self.register_buffer("weight", (norm[source] * norm[target]).unsqueeze(-1))

    def forward(self, x):
        start = self.predict(x)
        state = start
        for _ in range(self.steps):
            spread = torch.zeros_like(state)
            spread.index_add_(0, self.target, state[self.source] * self.weight)
            state = (1 - self.restart) * spread + self.restart * start
        return state.log_softmax(-1)


def walks_with_restarts(device):
    torch.manual_seed(0)
    model = PersonalizedPropagation(8, 3, torch.randint(0, 30, (2, 90)), 30).to(device)
    return model, (torch.randn(30, 8, device=device),)
