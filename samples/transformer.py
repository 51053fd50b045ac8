"""A transformer encoder trained with dropout on next-token prediction.

    cgtool capture samples/transformer.py:build
    cgtool dump samples-transformer-build.cgt --svg -o transformer.svg

Look at: dropout's random state handled across replays, attention as one fused op, the range
"loss" that the user marked with record_function, and every backward node with the forward line.
"""

import torch
from torch import nn
from torch.profiler import record_function

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 1000, 128, 4, 4, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        with record_function("loss"):
            return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(device: str):
    torch.manual_seed(0)
    model = LanguageModel().to(device)
    tokens = torch.randint(VOCABULARY, (8, LENGTH + 1), device=device)
    return model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def deep_step(device: str):
    """A whole training step of 24 layers: `cgtool dump` draws them once."""
    torch.manual_seed(0)
    model = LanguageModel(layers=24).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True, foreach=True)
    tokens = torch.randint(VOCABULARY, (8, LENGTH + 1), device=device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        return loss

    return step
