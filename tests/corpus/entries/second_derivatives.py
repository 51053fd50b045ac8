"""Hessians, forward mode over reverse mode, and what is solved with them."""

import torch
from torch.func import grad, hessian, jvp


def energy(theta, x, y):
    return torch.nn.functional.softplus(-y * (x @ theta)).mean() + 0.05 * theta.square().sum()


def newton_step(device):
    torch.manual_seed(0)
    x, y = torch.randn(20, 4, device=device), torch.randn(20, device=device).sign()
    theta = torch.zeros(4, device=device)

    def newton():
        g = grad(energy)(theta, x, y)
        h = hessian(energy)(theta, x, y)
        delta = torch.linalg.solve(h, g)  # guilty: solve reads its error code on the host
        theta.sub_(delta)
        return delta

    return newton


def diagonal_of_a_hessian(device):
    x, y = torch.randn(20, 4, device=device), torch.randn(20, device=device).sign()

    def loss(theta):
        margin = torch.nn.functional.softplus(-y * (x @ theta)).mean()
        return margin + 0.05 * theta.square().sum()

    return lambda theta: hessian(loss)(theta).diagonal(), (torch.zeros(4, device=device),)


def hessian_times_a_vector(device):
    x = torch.randn(20, 4, device=device)

    def loss(theta):
        return (x @ theta).logsumexp(0) + 0.1 * theta.square().sum()

    def product(theta, vector):
        return jvp(grad(loss), (theta,), (vector,))[1]

    return product, (torch.zeros(4, device=device), torch.randn(4, device=device))
