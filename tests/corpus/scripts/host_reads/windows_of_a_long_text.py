"""Perplexity of a long text by overlapping windows; the last window is shorter and padded."""

import math

import torch
from torch import nn
from torch.nn import functional

WINDOW, STRIDE, IGNORED = 32, 16, -100


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(WINDOW, width) * 0.02)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids) + self.position, src_mask=self.mask))


torch.manual_seed(0)
model = LanguageModel().cuda().train(False)
ids = torch.zeros(1, WINDOW, dtype=torch.int64, device="cuda")
labels = torch.full((1, WINDOW), IGNORED, device="cuda")


def window_loss():
    logits = model(ids)[:, :-1].flatten(0, 1)
    wanted = labels[:, 1:].flatten()
    return functional.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")


with torch.no_grad():
    window_loss()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = window_loss()

text = torch.randint(0, 64, (1, 137))
total, tokens, scored = 0.0, 0, 0
for begin in range(0, text.shape[1], STRIDE):
    end = min(begin + WINDOW, text.shape[1])
    piece = text[:, begin:end]
    fresh = piece.clone()
    fresh[:, : max(scored - begin, 0)] = IGNORED
    padding = WINDOW - piece.shape[1]
    ids.copy_(functional.pad(piece, (0, padding)))
    labels.copy_(functional.pad(fresh, (0, padding), value=IGNORED))
    graph.replay()
    total += loss.item()
    tokens += int((fresh[:, 1:] != IGNORED).sum())
    scored = end
    if end == text.shape[1]:
        break
print("perplexity", math.exp(total / tokens))
