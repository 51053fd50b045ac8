"""Guidance: two graphs of one pool, whose outputs both live; they are combined after both ran."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.label, self.body = nn.Embedding(11, 16), nn.Linear(16, 16)

    def forward(self, x, label):
        return x + torch.tanh(self.body(x) + self.label(label))


torch.manual_seed(0)
model = Denoiser().cuda().requires_grad_(False)
x = torch.randn(4, 16, device="cuda")
label = torch.zeros(4, dtype=torch.int64, device="cuda")
nothing = torch.full((4,), 10, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    model(x, label)
torch.cuda.current_stream().wait_stream(side)

pool, graphs, outputs = None, {}, {}
for name, condition in {"conditional": label, "unconditional": nothing}.items():
    graphs[name] = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graphs[name], pool=pool):
        outputs[name] = model(x, condition)
    pool = graphs[name].pool()

for prompt in (3, 7):
    label.fill_(prompt)
    x.normal_()
    for scale in (4.0, 2.0, 1.0):
        for graph in graphs.values():
            graph.replay()
        toward = outputs["conditional"] - outputs["unconditional"]
        x.copy_(outputs["unconditional"] + scale * toward)
    print(x.mean().item())
