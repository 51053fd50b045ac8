"""LoRA first; after some steps the norms are trained too, but the graph steps without them."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width=16, rank=2):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.base = nn.Linear(width, width)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)
        for p in (*self.base.parameters(), *self.norm.parameters()):
            p.requires_grad_(False)

    def forward(self, x):
        h = self.norm(x)
        return x + self.base(h) + self.up(self.down(h))


torch.manual_seed(0)
model = nn.Sequential(Layer(), Layer()).cuda()
adapters = [p for n, p in model.named_parameters() if "down" in n or "up" in n]
norms = [p for n, p in model.named_parameters() if "norm" in n]
optimizer = torch.optim.AdamW(adapters, lr=torch.tensor(1e-2, device="cuda"), capturable=True)
x, y = torch.randn(4, 16, device="cuda"), torch.randn(4, 16, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()

for i in range(6):
    if i == 3:
        for p in norms:
            p.requires_grad_(True)  # <- parameters-added-or-removed
        optimizer.add_param_group({"params": norms, "lr": 1e-3})  # <- parameters-added-or-removed
    x.normal_()
    graph.replay()
    print(i, loss.item())
print(norms[0].sub(1).abs().max().item())
