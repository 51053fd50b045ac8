"""Tiled decoding of a large latent: tiles are kept by their place and pasted at the end."""

import torch
from torch import nn

tile, scale = 4, 2
decoder = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.ConvTranspose2d(8, 3, scale, stride=scale)
)
decoder.cuda().requires_grad_(False)
static_latent = torch.zeros(1, 3, tile, tile, device="cuda")

decoder(static_latent)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static_pixels = decoder(static_latent)


def decode_tile(latent):
    static_latent.copy_(latent)
    graph.replay()
    return static_pixels  # guilty: each tile is the same tensor


def decode(latent):
    height, width = latent.shape[-2:]
    tiles = {}
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            part = latent[..., top : top + tile, left : left + tile]
            tiles[top, left] = decode_tile(part)  # guilty: kept while the next one is decoded
    picture = latent.new_zeros(1, 3, height * scale, width * scale)
    for (top, left), pixels in tiles.items():
        y, x = top * scale, left * scale
        picture[..., y : y + tile * scale, x : x + tile * scale] = pixels  # guilty: the last tile
    return picture


picture = decode(torch.randn(1, 3, 8, 8, device="cuda"))
print(picture.mean().item(), picture.std().item())
