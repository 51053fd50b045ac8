"""A generator yields the logits of each replay; the caller collects them in a list."""

import torch
from torch import nn

embed = nn.Embedding(16, 8).cuda()
head = nn.Linear(8, 16).cuda()
token = torch.zeros(1, dtype=torch.long, device="cuda")


@torch.no_grad()
def forward():
    return head(embed(token))


forward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    logits = forward()


def stream(prompt, steps):
    token.fill_(prompt)
    for _ in range(steps):
        graph.replay()  # guilty: overwrites what was yielded
        yield logits  # guilty: keeps no copy
        token.copy_(logits.argmax(-1))


scores = list(stream(3, 4))  # guilty: one tensor, four times
print(torch.cat(scores).amax(-1).tolist())
