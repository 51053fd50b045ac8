import torch
from torch.func import hessian


def diagonal_of_a_hessian(device):
    x, y = torch.randn(20, 4, device=device), torch.randn(20, device=device).sign()

    def loss(theta):
        margin = torch.nn.functional.softplus(-y * (x @ theta)).mean()
        return margin + 0.05 * theta.square().sum()

    return lambda theta: hessian(loss)(theta).diagonal(), (torch.zeros(4, device=device),)
