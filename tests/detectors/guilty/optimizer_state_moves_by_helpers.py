"""Helpers move what a graph reads to the host and back, under names and keys of their own."""

import torch
from torch import nn

model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
static = {"x": torch.zeros(4, 8, device="cuda"), "gain": torch.ones(4, 1, device="cuda")}


def step():
    optimizer.zero_grad()
    loss = (model(static["x"]) * static["gain"]).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def offload(optimizer):
    for state in optimizer.state.values():
        for key, value in state.items():
            state[key] = value.to("cpu")


def reload(optimizer):
    for state in optimizer.state.values():
        for key, value in state.items():
            state[key] = value.to("cuda")  # <- metadata-address-changed


def upload(batch, source):
    for key, value in source.items():
        batch[key] = value.cuda()  # <- metadata-address-changed


step()
torch.cuda.synchronize()
optimizer.zero_grad()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()

for number in range(4):
    if number == 1:
        upload(static, {"x": torch.randn(4, 8), "gain": torch.ones(4, 1)})
    graph.replay()
    if number == 2:
        offload(optimizer)
        print(loss.item())
        reload(optimizer)
