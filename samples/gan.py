"""A generator and a discriminator as a tuple of callables that share one memory pool.

    cgtool capture samples/gan.py:build
    cgtool pools gan-build.cgt

Look at: four graphs, forward in order and backward in reverse, and in `pools` the blocks that one
graph leaves for the next; `--pool separate` shows what sharing saves.
"""

import torch
from torch import nn

NOISE, WIDTH, PIXELS, BATCH = 32, 128, 256, 64


def build(device: str):
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.Linear(NOISE, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, PIXELS), nn.Tanh()
    ).to(device)
    discriminator = nn.Sequential(
        nn.Linear(PIXELS, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1)
    ).to(device)
    noise = torch.randn(BATCH, NOISE, device=device)
    images = torch.randn(BATCH, PIXELS, device=device, requires_grad=True)
    return (generator, discriminator), ((noise,), (images,))
