import itertools
import math

import torch
from torch import nn

unet = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1))
unet = unet.cuda().eval()
x = torch.zeros(1, 4, 16, 16, device="cuda")
sigma, sigma_next = (torch.ones((), device="cuda") for _ in range(2))
generator = torch.Generator(device="cuda").manual_seed(3)


def ancestral(x):
    denoised = x - sigma * unet(x * torch.rsqrt(sigma**2 + 1))
    up = torch.minimum(
        sigma_next, (sigma_next**2 * (1 - (sigma_next / sigma) ** 2)).clamp(min=0).sqrt()
    )
    down = (sigma_next**2 - up**2).clamp(min=0).sqrt()
    noise = torch.randn(x.shape, device=x.device, generator=generator)
    return x + (x - denoised) / sigma * (down - sigma) + noise * up


with torch.inference_mode():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        ancestral(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out = ancestral(x)
    for image in range(2):
        x.normal_(generator=generator).mul_(14.6)
        levels = [14.6 * math.exp(-0.5 * i) for i in range(8)] + [0.0]
        for now, then in itertools.pairwise(levels):
            sigma.fill_(now)
            sigma_next.fill_(then)
            graph.replay()
            x.copy_(out)
        print(image, x.std().item())
