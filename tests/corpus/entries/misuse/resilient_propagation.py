import torch
from torch import nn
from torch.nn import functional


def resilient_propagation(device):
    model = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  # <- optimizer-not-capturable
        return loss

    return step, (torch.randn(8, 6, device=device), torch.randint(3, (8,), device=device))
