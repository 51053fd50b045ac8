"""Encodings of prompts are memoized as clones of the output of a graph."""

import functools

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(64, 8).cuda()
encoder = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).cuda()
ids = torch.zeros(5, dtype=torch.long, device="cuda")


@torch.inference_mode()
def forward():
    return encoder(table(ids)).mean(0)


forward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.inference_mode(), torch.cuda.graph(graph):
    pooled = encoder(table(ids)).mean(0)


@functools.lru_cache(maxsize=8)
def encode(prompt):
    ids.copy_(torch.tensor([ord(letter) % 64 for letter in prompt]))
    graph.replay()
    return pooled.clone()


with torch.inference_mode():
    for prompt in ("river", "stone", "river", "cloud", "stone"):
        query = encode(prompt)
        reference = encode("river")
        likeness = torch.cosine_similarity(query, reference, dim=0)
        print(prompt, likeness.item())
