"""Means of the features of a speaker move in place while the recognizer listens."""

import torch
from torch import nn


class Normalizer(nn.Module):
    def __init__(self, bands=8):
        super().__init__()
        self.register_buffer("mean", torch.zeros(bands))
        self.utterances = 0

    def update(self, mel, rate=0.1):
        self.utterances += 1
        self.mean.lerp_(mel.mean(0), max(rate, 1 / self.utterances))

    def forward(self, mel):
        return mel - self.mean


normalizer = Normalizer().cuda()
model = nn.Sequential(normalizer, nn.Linear(8, 4), nn.LogSoftmax(-1)).cuda().eval()
mel = torch.zeros(20, 8, device="cuda")
with torch.no_grad():
    model(mel)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = model(mel)

    for _ in range(5):
        mel.copy_(3 + torch.randn(20, 8, device="cuda"))
        normalizer.update(mel)
        graph.replay()
        print(normalizer.utterances, scores.exp().mean(0).tolist())
