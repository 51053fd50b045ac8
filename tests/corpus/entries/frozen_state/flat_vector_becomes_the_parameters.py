import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def flat_vector_becomes_the_parameters(device):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).to(device)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 1, device=device)

    def step():
        loss = functional.mse_loss(model(x), y)  # <- metadata-address-changed
        grads = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            flat = parameters_to_vector(model.parameters())
            flat = flat - 0.1 * parameters_to_vector(grads)
            vector_to_parameters(flat, model.parameters())  # <- metadata-address-changed
        return loss

    return step
