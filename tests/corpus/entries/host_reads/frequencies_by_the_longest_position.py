import torch
from torch import nn


class LongRotary(nn.Module):
    """Two sets of frequencies: one for prompts up to the original length, one for longer ones."""

    def __init__(self, dim=16, original=64):
        super().__init__()
        self.original = original
        inverse = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
        self.register_buffer("short", inverse)
        self.register_buffer("long", inverse / torch.linspace(1, 4, dim // 2))

    def forward(self, positions):
        length = positions.max() + 1
        if length > self.original:  # <- sync-truth-value
            inverse = self.long
        else:
            inverse = self.short
        angles = positions[..., None].float() * inverse
        return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()


def frequencies_by_the_longest_position(device):
    torch.manual_seed(0)
    rotary = LongRotary().to(device)
    qk = nn.Linear(32, 32, bias=False).to(device)
    hidden = torch.randn(4, 32, device=device)
    positions = torch.tensor([3, 17, 40, 41], device=device)

    @torch.inference_mode()
    def attend(hidden, positions):
        q, k = qk(hidden).chunk(2, -1)
        cos, sin = rotary(positions)

        def rotate(x):
            left, right = x.chunk(2, -1)
            return x * cos + torch.cat([-right, left], -1) * sin

        return (rotate(q) @ rotate(k).T).softmax(-1)

    return attend, (hidden, positions)
