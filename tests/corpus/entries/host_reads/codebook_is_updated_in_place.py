import torch
from torch import nn


class UpdatedCodebook(nn.Module):
    """The same codebook, updated in place; `.data` is read, not assigned."""

    def __init__(self, codes=16, dim=6, decay=0.9):
        super().__init__()
        self.decay = decay
        embed = torch.randn(dim, codes)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(codes))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, x):
        distance = x.pow(2).sum(1, keepdim=True) - 2 * x @ self.embed + self.embed.pow(2).sum(0)
        _, nearest = (-distance).max(1)
        chosen = nn.functional.one_hot(nearest, 16).type(x.dtype)
        quantized = nn.functional.embedding(nearest, self.embed.T)
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(chosen.sum(0), alpha=1 - self.decay)
            self.embed_avg.data.mul_(self.decay).add_(x.T @ chosen, alpha=1 - self.decay)
            n = self.cluster_size.sum()
            sizes = (self.cluster_size + 1e-5) / (n + 16e-5) * n
            self.embed.data.copy_(self.embed_avg / sizes.unsqueeze(0))
        return x + (quantized - x).detach(), (quantized.detach() - x).pow(2).mean()


def codebook_is_updated_in_place(device):
    layer = UpdatedCodebook().to(device)
    x = torch.randn(20, 6, device=device)

    def step():
        return layer(x)

    return step
