import torch
from torch import nn
from torch.nn import functional


class AnnealedAutoencoder(nn.Module):
    """The weight of the divergence grows with the number of losses that were recorded."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 6), nn.Linear(3, 8)
        self.losses = []

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
        error = functional.mse_loss(self.decode(z), x)
        loss = (
            error + min(1.0, len(self.losses) / 50) * divergence
        )  # <- python-side-effects-skipped
        self.losses.append(loss.detach())  # <- python-side-effects-skipped
        return loss


def divergence_weighted_by_a_length(device):
    return AnnealedAutoencoder().to(device), (torch.randn(5, 8, device=device),)
