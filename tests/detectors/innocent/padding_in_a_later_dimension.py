"""Sequences of different lengths fill static inputs, and what is behind them is reset, masked, or
read by no real token."""

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda")
print((warm @ warm).sum().item())  # makes the handle of cuBLAS, which a capture must not
ROWS, TIME, NODES, EDGES = 2, 8, 5, 10
embed = nn.Embedding(50, 8).cuda()
encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).cuda().eval()
tokens = torch.zeros(ROWS, TIME, dtype=torch.int64, device="cuda")
lengths = torch.zeros(ROWS, 1, dtype=torch.int64, device="cuda")
prompt = torch.zeros(ROWS, TIME, dtype=torch.int64, device="cuda")
edges = torch.full((2, EDGES), NODES, device="cuda")
features = torch.zeros(NODES + 1, 3, device="cuda")
causal = torch.triu(torch.full((TIME, TIME), float("-inf"), device="cuda"), 1)
places = torch.arange(TIME, device="cuda")


def step():
    hidden = encoder(embed(tokens), src_key_padding_mask=places >= lengths)
    pooled = hidden.masked_fill((places >= lengths)[..., None], 0).sum(1)
    logits = encoder(embed(prompt), src_mask=causal)
    sums = torch.zeros_like(features).index_add_(0, edges[1], features[edges[0]])
    return pooled, logits, logits.flatten(0, 1).argmax(-1), sums[:NODES].sum()


with torch.inference_mode():
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pooled, logits, best, energy = step()
    for count in (8, 3, 6, 2):
        tokens[:, :count].copy_(torch.randint(50, (ROWS, count)))
        lengths.fill_(count)
        prompt[:, :count].copy_(torch.randint(50, (ROWS, count)))
        features[:NODES].copy_(torch.randn(NODES, 3))
        edges[:, :count].copy_(torch.randint(NODES, (2, count)))
        edges[:, count:] = NODES
        graph.replay()
        print(pooled.sum().item(), logits[:, :count].sum().item(), energy.item())
        print(best.view(ROWS, TIME)[:, :count].tolist())
