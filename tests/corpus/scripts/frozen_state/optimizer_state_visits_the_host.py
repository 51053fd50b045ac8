"""Between training and generation the optimizer's state is offloaded, as an RLHF trainer does."""

import torch
from torch import nn


def offload(optimizer):
    for state in optimizer.state.values():
        for name, value in state.items():
            if torch.is_tensor(value) and value.dim() > 0:
                state[name] = value.to("cpu")  # <- metadata-address-changed


def reload(optimizer, device):
    for state in optimizer.state.values():
        for name, value in state.items():
            if torch.is_tensor(value):
                state[name] = value.to(device)  # <- metadata-address-changed


model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
x, advantage = torch.randn(16, 8, device="cuda"), torch.randn(16, 1, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = -(model(x) * advantage).mean()
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

for iteration in range(3):
    for _ in range(4):
        x.copy_(torch.randn(16, 8))
        advantage.copy_(torch.randn(16, 1))
        graph.replay()
    offload(optimizer)
    with torch.no_grad():
        rewards = model(torch.randn(16, 8, device="cuda")).mean()
    reload(optimizer, "cuda")
    print(iteration, loss.item(), rewards.item())
