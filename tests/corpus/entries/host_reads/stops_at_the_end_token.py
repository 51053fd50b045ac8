import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, length=32):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        shape = (1, heads, length, width // heads)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def split(self, x):
        parts = self.qkv(x).chunk(3, -1)
        return [each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts]

    def forward(self, x, position):
        q, k, v = self.split(x)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        mask = torch.arange(self.keys.shape[2], device=x.device) <= position
        y = functional.scaled_dot_product_attention(
            q, self.keys, self.values, mask[None, None, None]
        )
        return self.out(y.transpose(1, 2).flatten(2))


def _decoder(device, attention=Attention):
    embedding = nn.Embedding(64, 16)
    head = nn.Linear(16, 64)
    return embedding.to(device), attention().to(device), head.to(device)


def stops_at_the_end_token(device):
    embedding, attention, head = _decoder(device)

    @torch.no_grad()
    def decode(token, position):
        done = torch.zeros(1, dtype=torch.bool, device=device)
        for _ in range(4):
            token = head(attention(embedding(token), position)).argmax(-1)
            position.add_(1)
            done |= token[:, 0] == 2
            if done.all():  # <- sync-truth-value
                break
        return token

    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    return decode, (token, torch.zeros(1, dtype=torch.long, device=device))
