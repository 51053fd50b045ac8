"""A frozen encoder as a graph, and a head that trains eagerly on each of its answers."""

import torch
from torch import nn
from torch.nn import functional


class Encoder(nn.Module):
    def __init__(self, bands=40, width=64):
        super().__init__()
        self.conv = nn.Conv1d(bands, width, 5, 2, 2)
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())

    def forward(self, spectrogram):
        return self.mix(self.conv(spectrogram).transpose(1, 2)).mean(1)


torch.manual_seed(0)
encoder = Encoder().cuda().eval().requires_grad_(False)
head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6)).cuda()
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)

spectrogram = torch.zeros(8, 40, 50, device="cuda")
encoder(spectrogram)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    embedding = encoder(spectrogram)

correct, seen = 0, 0
for step in range(4):
    optimizer.zero_grad()
    for _ in range(2):
        spectrogram.copy_(torch.randn(8, 40, 50))
        labels = torch.randint(0, 6, (8,), device="cuda")
        graph.replay()
        logits = head(embedding)
        loss = functional.cross_entropy(logits, labels) / 2
        loss.backward()
        correct += int((logits.argmax(-1) == labels).sum())
        seen += len(labels)
    optimizer.step()
    print(step, loss.item(), correct / seen)
