"""Vector quantization: dead codes are drawn anew between replays, in the codebook itself."""

import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self, codes, width):
        super().__init__()
        self.register_buffer("codebook", torch.randn(codes, width))
        self.register_buffer("usage", torch.zeros(codes))

    def forward(self, z):
        nearest = torch.cdist(z, self.codebook).argmin(1)
        self.usage.index_add_(0, nearest, torch.ones_like(nearest, dtype=self.usage.dtype))
        return self.codebook[nearest]

    def restart(self, z):
        dead = (self.usage == 0).nonzero().flatten()
        if len(dead):
            rows = torch.randint(len(z), (len(dead),), device=z.device)
            self.codebook[dead] = z[rows]
        self.usage.zero_()


torch.manual_seed(0)
quantizer = Quantizer(16, 4).cuda()
z = torch.randn(8, 4, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    quantizer(z)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    quantized = quantizer(z)

for _ in range(3):
    z.normal_()
    graph.replay()
    print((quantized - z).square().mean().item())
    quantizer.restart(z)
