"""Sparse training: the mask is a buffer of a parametrization; weights are dropped and grown."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize


class Sparse(nn.Module):
    def __init__(self, weight, density):
        super().__init__()
        self.register_buffer("mask", (torch.rand_like(weight) < density).float())

    def forward(self, weight):
        return weight * self.mask


@torch.no_grad()
def regrow(layer, share):
    """The smallest active weights make room for random inactive ones."""
    sparse = layer.parametrizations.weight[0]
    weight, mask = layer.parametrizations.weight.original, sparse.mask
    count = int(share * mask.sum().item())
    active = torch.where(mask.bool(), weight.abs(), torch.inf).flatten()
    dropped = active.topk(count, largest=False).indices
    inactive = torch.where(mask.bool(), -1.0, torch.rand_like(weight)).flatten()
    grown = inactive.topk(count).indices
    fresh = mask.flatten().clone()
    fresh[dropped] = 0
    fresh[grown] = 1
    weight.view(-1)[grown] = 0
    mask.copy_(fresh.view_as(mask))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
for layer in (model[0], model[2]):
    parametrize.register_parametrization(layer, "weight", Sparse(layer.weight, 0.3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
x = torch.zeros(32, 16, device="cuda")
y = torch.zeros(32, dtype=torch.int64, device="cuda")


def train_step():
    optimizer.zero_grad(set_to_none=True)
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train_step()

for step in range(12):
    batch = torch.randn(32, 16)
    x.copy_(batch)
    y.copy_(batch[:, :4].argmax(-1))
    graph.replay()
    if step % 4 == 3:
        for layer in (model[0], model[2]):
            regrow(layer, 0.1)
        print(step, loss.item())
