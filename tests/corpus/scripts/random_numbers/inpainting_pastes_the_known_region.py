"""Inpainting: each replay is one step, with its time and its noise levels in tensors."""

import torch
from torch import nn

STEPS = 6
torch.manual_seed(13)
levels = torch.linspace(0.99, 0.02, STEPS + 1)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(STEPS, 8)
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x, step):
        return self.last((self.first(x) + self.time(step)[:, :, None, None]).relu())


model = Denoiser().cuda().requires_grad_(False)
x = torch.randn(1, 3, 16, 16, device="cuda")
known, mask = torch.zeros_like(x), torch.zeros(1, 1, 16, 16, dtype=torch.bool, device="cuda")
step = torch.zeros(1, dtype=torch.int64, device="cuda")
now, then = torch.ones((), device="cuda"), torch.ones((), device="cuda")


def denoise():
    noise = model(x, step)
    clean = (x - now * noise) / (1 - now**2).clamp_min(1e-4).sqrt()
    guess = (1 - then**2).sqrt() * clean.clamp(-1, 1) + then * noise
    pasted = (1 - then**2).sqrt() * known + then * torch.randn_like(known)
    x.copy_(torch.where(mask, pasted, guess))


for _ in range(2):
    denoise()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    denoise()

for width in (4, 8):
    known.copy_(torch.rand(1, 3, 16, 16) * 2 - 1)
    mask.fill_(True)
    mask[..., :width].fill_(False)
    x.normal_()
    for number in range(STEPS):
        step.fill_(number)
        now.fill_(levels[number].item())
        then.copy_(levels[number + 1])
        graph.replay()
    print(width, torch.where(mask, x - known, 0).abs().mean().item())
