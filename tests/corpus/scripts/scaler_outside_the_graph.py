"""Forward and backward are captured under autocast; the scaler steps outside."""

import torch
from torch import nn

model = nn.Linear(2, 1, bias=False).cuda()
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
x = torch.ones(1, 2, device="cuda")


def forward_and_backward():
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        loss = model(x).float().sum()
    scaler.scale(loss).backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        forward_and_backward()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = forward_and_backward()

for value in (1.0, 2.0):
    x.fill_(value)
    graph.replay()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    scaler.step(optimizer)
    scaler.update()
print(model.weight.tolist(), loss.item())  # eager: [[-0.5, -0.5]] 2.0
