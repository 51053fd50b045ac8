import torch
from torch import nn


def _model(device, dropout=0.0):
    layers = nn.Linear(10, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 3)
    return nn.Sequential(*layers).to(device)


def _batch(device):
    return torch.randn(8, 10, device=device), torch.randint(3, (8,), device=device)


def autocast_inside_the_step(device):
    """The cache of casts lives as long as the context, which is entered and left in the step."""
    model = _model(device, dropout=0.1)
    x, y = _batch(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            first, second = model(x), model(x)
            loss = nn.functional.cross_entropy(first, y)
            loss = loss + nn.functional.mse_loss(first.softmax(-1), second.softmax(-1))
        loss.backward()
        opt.step()
        return loss.detach()

    return step
