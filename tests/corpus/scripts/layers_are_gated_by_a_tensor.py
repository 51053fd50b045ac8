"""Which layer can be spared: each has a gate on the device, which the host opens and closes."""

import torch
from torch import nn


class GatedLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, gate):
        normed = self.norm(x)
        attended, _ = self.attention(normed, normed, normed, need_weights=False)
        return x + gate * (attended + self.mlp(normed))


class GatedModel(nn.Module):
    def __init__(self, width=32, depth=5):
        super().__init__()
        self.embed = nn.Embedding(80, width)
        self.layers = nn.ModuleList(GatedLayer(width) for _ in range(depth))
        self.head = nn.Linear(width, 80)
        self.register_buffer("gates", torch.ones(depth))

    def forward(self, ids):
        x = self.embed(ids)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            x = layer(x, gate)
        return self.head(x)


torch.manual_seed(0)
model = GatedModel().cuda().eval()
ids = torch.randint(0, 80, (4, 12), device="cuda")
with torch.no_grad():
    model(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(ids)

graph.replay()
reference = logits.log_softmax(-1)
divergence = {}
for removed in range(len(model.layers)):
    model.gates.fill_(1)
    model.gates[removed] = 0
    graph.replay()
    pruned = logits.log_softmax(-1)
    divergence[removed] = (reference.exp() * (reference - pruned)).sum(-1).mean().item()
best = min(divergence, key=divergence.get)
model.gates.fill_(1)
model.gates[best] = 0
print(best, divergence)
