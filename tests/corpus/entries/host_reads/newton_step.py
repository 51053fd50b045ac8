import torch
from torch.func import grad, hessian


def energy(theta, x, y):
    return torch.nn.functional.softplus(-y * (x @ theta)).mean() + 0.05 * theta.square().sum()


def newton_step(device):
    torch.manual_seed(0)
    x, y = torch.randn(20, 4, device=device), torch.randn(20, device=device).sign()
    theta = torch.zeros(4, device=device)

    def newton():
        g = grad(energy)(theta, x, y)
        h = hessian(energy)(theta, x, y)
        delta = torch.linalg.solve(h, g)  # <- linalg-error-check
        theta.sub_(delta)
        return delta

    return newton
