"""Prompts of different lengths are copied to their rows; a mask of the lengths ends them."""

import torch
from torch import nn

torch.manual_seed(0)
ROWS, TIME = 3, 8
embed = nn.Embedding(40, 8).cuda().requires_grad_(False)
head = nn.Linear(8, 2).cuda().requires_grad_(False)
tokens = torch.zeros(ROWS, TIME, dtype=torch.int64, device="cuda")
lengths = torch.ones(ROWS, 1, dtype=torch.int64, device="cuda")
places = torch.arange(TIME, device="cuda")


def classify():
    hidden = embed(tokens).masked_fill((places >= lengths)[..., None], 0)
    return head(hidden.sum(1) / lengths)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    classify()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    logits = classify()

for batch in ((8, 5, 7), (3, 4, 2), (6, 1, 5)):
    for row, length in enumerate(batch):
        prompt = torch.arange(1, length + 1, device="cuda") * (row + 1)
        tokens[row, :length].copy_(prompt)
    lengths.copy_(torch.tensor(batch)[:, None])
    graph.replay()
    print([round(each, 3) for each in logits.flatten().tolist()])
