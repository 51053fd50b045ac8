"""The averaged model is a deep copy, made when the model was a graphed callable already."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 2)).cuda()
x = torch.randn(16, 8, device="cuda")
model = torch.cuda.make_graphed_callables(model, (x,))
averaged = copy.deepcopy(model).requires_grad_(False)  # <- graphed-module-mutated-in-place
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(16, 8, device="cuda")).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(averaged.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 0.1)

x = torch.randn(16, 8, device="cuda")
print("model", model(x).square().mean().item())
print("average", averaged(x).square().mean().item())  # <- graphed-module-mutated-in-place
