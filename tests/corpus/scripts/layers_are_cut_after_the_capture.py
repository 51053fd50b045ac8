"""Depth pruning: the layers that change their input least are removed from a model in service."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self, width=32, depth=6):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 100)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@torch.no_grad()
def influence(model, ids):
    x, scores = model.embed(ids), []
    for layer in model.layers:
        out = layer(x)
        scores.append(1 - torch.cosine_similarity(x, out, dim=-1).mean().item())
        x = out
    return scores


torch.manual_seed(0)
model = Model().cuda().eval()
ids = torch.randint(0, 100, (4, 16), device="cuda")
with torch.no_grad():
    model(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(ids)

graph.replay()
print("all layers", logits.softmax(-1).amax(-1).mean().item())

scores = influence(model, ids)
least = min(range(len(scores)), key=scores.__getitem__)
del model.layers[least]  # guilty: the graph still runs this layer
print("removed", least, "left", len(model.layers))

for _ in range(3):
    ids.copy_(torch.randint(0, 100, (4, 16)))
    graph.replay()
    print("fewer layers", logits.softmax(-1).amax(-1).mean().item())
