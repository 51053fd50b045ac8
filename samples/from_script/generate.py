"""An inference loop with a static key-value cache: one token a step."""

import argparse

import torch
from torch import nn

WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 32, 100


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).view(1, 3, HEADS, 1, -1).unbind(1)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        mixed = nn.functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask
        )
        return x + self.out(mixed.reshape(1, 1, WIDTH))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("slots", torch.arange(LENGTH))

    @torch.no_grad()
    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        mask = (self.slots <= position).view(1, 1, 1, LENGTH)
        x = self.tokens(token)
        for layer in self.layers:
            x = layer(x, position, mask)
        return self.head(x).argmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()

    model = LanguageModel().to(options.device).eval()
    token = torch.zeros(1, 1, dtype=torch.int64, device=options.device)
    position = torch.zeros(1, dtype=torch.int64, device=options.device)
    generated = []
    for _ in range(options.tokens):
        token = model(token, position)
        position += 1
        generated.append(token.item())
    print(generated)


if __name__ == "__main__":
    main()
