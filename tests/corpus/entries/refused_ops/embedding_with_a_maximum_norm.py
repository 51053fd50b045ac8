import torch
from torch import nn


def embedding_with_a_maximum_norm(device):
    embedding = nn.Embedding(12, 4, max_norm=1.0).to(device).requires_grad_(False)

    def forward(ids):
        return embedding(ids).sum(1)

    return forward, (torch.randint(12, (3, 5), device=device),)
