"""Tiled decoding with overlaps: each tile is added to the canvas before the next replay."""

import torch
from torch import nn
from torch.nn import functional

tile, overlap, scale = 6, 2, 2
decoder = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.ConvTranspose2d(8, 3, scale, stride=scale)
)
decoder.cuda().requires_grad_(False)
static_latent = torch.zeros(1, 3, tile, tile, device="cuda")
ramp = torch.linspace(0.1, 1, tile * scale, device="cuda")
window = torch.minimum(ramp, ramp.flip(0))
window = window[:, None] * window

decoder(static_latent)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static_pixels = decoder(static_latent) * window


def places(size):
    return range(0, size - overlap, tile - overlap)


def decode(latent):
    height, width = latent.shape[-2:]
    room = tile
    padded = functional.pad(latent, (0, room, 0, room), mode="constant")
    canvas = latent.new_zeros(1, 3, (height + room) * scale, (width + room) * scale)
    weight = torch.zeros_like(canvas[:, :1])
    for top in places(height):
        for left in places(width):
            static_latent.copy_(padded[..., top : top + tile, left : left + tile])
            graph.replay()
            ys = slice(top * scale, (top + tile) * scale)
            xs = slice(left * scale, (left + tile) * scale)
            canvas[..., ys, xs] += static_pixels
            weight[..., ys, xs] += window
    blended = canvas / weight.clamp(min=1e-3)
    return blended[..., : height * scale, : width * scale]


picture = decode(torch.randn(1, 3, 10, 14, device="cuda"))
print(picture.shape, picture.mean().item())
