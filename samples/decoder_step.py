"""One decoding step of a small language model with a static key-value cache, without gradients.

    cgtool capture samples/decoder_step.py:build

Look at: many tiny kernels, the case in which CUDA graphs help most; the cache written in place by
index_copy_ at a position that lives on the device; no backward graph.
"""

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, CACHE = 1000, 128, 4, 4, 128
HEAD = WIDTH // HEADS


class CachedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp_norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.register_buffer("keys", torch.zeros(1, HEADS, CACHE, HEAD))
        self.register_buffer("values", torch.zeros(1, HEADS, CACHE, HEAD))

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).view(1, 1, 3, HEADS, HEAD).unbind(2)
        self.keys.index_copy_(2, position, key.transpose(1, 2))
        self.values.index_copy_(2, position, value.transpose(1, 2))
        mixed = nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), self.keys, self.values, attn_mask=mask
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.down(nn.functional.silu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(CachedBlock() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("slots", torch.arange(CACHE))

    @torch.no_grad()
    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        mask = (self.slots <= position).view(1, 1, 1, CACHE)
        x = self.tokens(token)
        for layer in self.layers:
            x = layer(x, position, mask)
        return self.head(self.norm(x)).argmax(-1)


def build(device: str):
    torch.manual_seed(0)
    model = Decoder().to(device).eval()
    token = torch.zeros(1, 1, dtype=torch.int64, device=device)
    position = torch.full((1,), 7, dtype=torch.int64, device=device)
    return model, (token, position)
