import torch


def hessian_times_vector(device):
    weight = torch.randn(5, 5, device=device)

    def energy(x):
        return torch.tanh(weight @ x).square().sum()

    def forward(x, direction):
        return torch.func.jvp(torch.func.grad(energy), (x,), (direction,))[1]

    return forward, (torch.randn(5, device=device), torch.randn(5, device=device))
