"""Text to speech: each phoneme lasts as many frames as its predicted duration."""

import torch
from torch import nn


class Acoustic(nn.Module):
    def __init__(self, phonemes=30, width=16, mel=20):
        super().__init__()
        self.embed = nn.Embedding(phonemes, width)
        self.duration = nn.Linear(width, 1)
        self.decode = nn.Linear(width, mel)

    def forward(self, ids):
        hidden = self.embed(ids)
        frames = self.duration(hidden).squeeze(-1).exp().round().clamp(1, 8).long()
        stretched = torch.repeat_interleave(hidden, frames, dim=0)  # guilty: asks how many
        return self.decode(stretched)


torch.manual_seed(0)
model = Acoustic().cuda().eval()
ids = torch.randint(30, (12,), device="cuda")
with torch.inference_mode():
    model(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mel = model(ids)
    graph.replay()
print(mel.shape)
