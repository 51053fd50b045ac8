"""A tree of prefixes holds the states that the prefill graph computed."""

import torch
from torch import nn


class Node:
    def __init__(self):
        self.children = {}
        self.state = None


class PrefixTree:
    def __init__(self):
        self.root = Node()

    def insert(self, tokens, states):
        node = self.root
        for place, token in enumerate(tokens):
            node = node.children.setdefault(token, Node())
            node.state = states[place]  # guilty: a view of what the next replay overwrites

    def find(self, tokens):
        node = self.root
        for token in tokens:
            if token not in node.children:
                return None
            node = node.children[token]
        return node.state


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(32, 4), nn.Linear(4, 4)).cuda().eval()
prompt = torch.zeros(3, dtype=torch.long, device="cuda")
with torch.inference_mode():
    model(prompt)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states = model(prompt).cumsum(0)

tree = PrefixTree()
for tokens in ([1, 2, 3], [4, 5, 6], [1, 2, 3], [4, 5, 6]):
    state = tree.find(tokens)
    if state is None:
        prompt.copy_(torch.tensor(tokens))
        graph.replay()
        tree.insert(tokens, states)
        state = states[-1]
    print(tokens, round(state.sum().item(), 4))
