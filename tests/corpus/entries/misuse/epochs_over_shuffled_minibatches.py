import torch
from torch import nn
from torch.nn import functional


def epochs_over_shuffled_minibatches(device):
    model = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    states = torch.randn(32, 6, device=device)
    actions = torch.randint(3, (32,), device=device)
    advantages = torch.randn(32, device=device)

    def step():
        losses = []
        for _ in range(2):
            for index in torch.randperm(32, device=device).split(16):
                optimizer.zero_grad()
                log_p = -functional.cross_entropy(
                    model(states[index]), actions[index], reduction="none"
                )
                loss = -(log_p * advantages[index]).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses).mean()

    return step
