"""A streaming vocoder: the graph blends each chunk of sound into the one before."""

import torch
from torch import nn


class Vocoder(nn.Module):
    def __init__(self, bands=20, hop=8, overlap=16):
        super().__init__()
        self.body = nn.Conv1d(bands, 32, 3, padding=1)
        self.up = nn.ConvTranspose1d(32, 1, 2 * hop, stride=hop)
        self.overlap = overlap
        self.register_buffer("tail", torch.zeros(1, 1, overlap))
        self.register_buffer("fade", torch.linspace(0, 1, overlap))

    def forward(self, frames):
        sound = torch.tanh(self.up(self.body(frames).relu()))
        head = sound[..., : self.overlap] * self.fade + self.tail * self.fade.flip(0)
        self.tail.copy_(sound[..., -self.overlap :])
        return torch.cat([head, sound[..., self.overlap : -self.overlap]], -1)

    def reset(self):
        self.tail.zero_()


def chunks(spectrogram, size):
    for start in range(0, spectrogram.shape[-1] - size + 1, size):
        yield spectrogram[..., start : start + size]


torch.manual_seed(8)
vocoder = Vocoder().cuda().requires_grad_(False)
frames = torch.zeros(1, 20, 10, device="cuda")
for _ in range(2):
    vocoder(frames)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    chunk = vocoder(frames)

for _ in range(2):
    vocoder.reset()
    sound = []
    for part in chunks(torch.randn(1, 20, 50, device="cuda"), 10):
        frames.copy_(part)
        graph.replay()
        sound.append(chunk.squeeze().cpu())
    print(torch.cat(sound).shape, torch.cat(sound).std().item())
