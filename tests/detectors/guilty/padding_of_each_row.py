"""Rows of different lengths are copied one by one, or several through a flat view."""

import torch
from torch import nn

torch.manual_seed(0)
warm = torch.ones(2, 2, device="cuda")
print((warm @ warm).sum().item())  # makes the handle of cuBLAS, which a capture must not
ROWS, TIME = 4, 8
embed = nn.Embedding(50, 8).cuda()
encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).cuda().eval()
tokens = torch.zeros(ROWS, TIME, dtype=torch.int64, device="cuda")
prompts = torch.zeros(ROWS, TIME, dtype=torch.int64, device="cuda")
frames = torch.zeros(ROWS, TIME, 2, device="cuda")
points = torch.zeros(ROWS, 3, device="cuda")
packed = torch.zeros(ROWS * 3, device="cuda")


def step():
    pooled = embed(tokens).mean(1)
    hidden = encoder(embed(prompts))
    return pooled, hidden, frames.amax(1), points.amax(0), packed.view(ROWS, 3).sum(0)


with torch.inference_mode():
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for counts in ([8, 6, 5, 7], [3, 2, 5, 4], [6, 1, 2, 8]):
        for row, count in enumerate(counts):
            new = torch.randint(50, (count,), device="cuda")
            tokens[row, :count].copy_(new)  # <- bucket-padding-garbage
            prompts[row : row + 1, :count] = new  # <- bucket-padding-garbage
            frames[row, :count].copy_(torch.randn(count, 2))  # <- bucket-padding-garbage
        rows = len([count for count in counts if count > 3])
        size = 3 * rows
        points.view(-1)[:size].copy_(torch.randn(size))  # <- bucket-padding-garbage
        packed.view(ROWS, 3)[:rows].copy_(torch.randn(rows, 3))  # <- bucket-padding-garbage
        graph.replay()
        print([result.sum().item() for result in results])
