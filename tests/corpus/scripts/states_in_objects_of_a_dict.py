"""The states of each prompt are kept in objects that a dict has already."""

import torch
from torch import nn


class Node:
    state = None


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(32, 4), nn.Linear(4, 4)).cuda().eval().requires_grad_(False)
prompt = torch.zeros(3, dtype=torch.long, device="cuda")
model(prompt)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    states = model(prompt).cumsum(0)


def insert(nodes, states):
    for place, node in enumerate(nodes):
        node.state = states[place]  # guilty: a view of what the next replay overwrites


kept = {}
for tokens in ([1, 2, 3], [4, 5, 6]):
    prompt.copy_(torch.tensor(tokens))
    graph.replay()
    kept[tuple(tokens)] = [Node() for _ in tokens]
    insert(kept[tuple(tokens)], states)
for tokens, nodes in kept.items():
    print(tokens, [n.state.sum().item() for n in nodes])
