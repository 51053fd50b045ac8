import torch
from torch.func import grad, jvp


def hessian_times_a_vector(device):
    x = torch.randn(20, 4, device=device)

    def loss(theta):
        return (x @ theta).logsumexp(0) + 0.1 * theta.square().sum()

    def product(theta, vector):
        return jvp(grad(loss), (theta,), (vector,))[1]

    return product, (torch.zeros(4, device=device), torch.randn(4, device=device))
