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


def growing_cache(device):
    embedding, attention, head = _decoder(device)
    cache = {}

    @torch.no_grad()
    def decode(token):
        q, k, v = attention.split(embedding(token))
        if "k" in cache:
            k = torch.cat([cache["k"], k], 2)  # <- metadata-address-changed
            v = torch.cat([cache["v"], v], 2)  # <- metadata-address-changed
        cache.update(k=k[:, :, -16:], v=v[:, :, -16:])  # <- metadata-address-changed
        y = functional.scaled_dot_product_attention(q, k, v)
        return head(attention.out(y.transpose(1, 2).flatten(2)))

    return decode, (torch.zeros(1, 1, dtype=torch.long, device=device),)
