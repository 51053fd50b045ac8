import torch
from torch import nn
from torch.nn import functional


def accumulates_in_a_loop(device):
    model = nn.Linear(8, 4, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x, y = torch.randn(4, 8, 8, device=device), torch.randint(4, (4, 8), device=device)

    def step():
        total = torch.zeros((), device=device)
        for micro, (batch, labels) in enumerate(zip(x.unbind(), y.unbind(), strict=True)):
            loss = functional.cross_entropy(model(batch), labels) / 4
            loss.backward()
            total += loss.detach()
            if (micro + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return total

    return step
