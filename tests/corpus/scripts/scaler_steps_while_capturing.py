"""Mixed precision: the whole step with GradScaler, `scaler.step` included, is captured."""

# `GradScaler.step` asks with `.item()` whether the gradients are finite, unless the optimizer takes
# the answer as a tensor (fused). SGD with foreach does not.

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
x = torch.randn(4, 8, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # guilty: asks on the host whether the gradients are finite
    scaler.update()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    step()
graph.replay()
print(scaler.get_scale())
