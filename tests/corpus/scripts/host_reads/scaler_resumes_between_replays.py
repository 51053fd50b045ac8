"""The scaler's state is saved and loaded between replays: its scale is filled in place."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2)
x = torch.randn(16, 8, device="cuda")
y = torch.randint(4, (16,), device="cuda")


def forward_backward():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        loss = functional.cross_entropy(model(x).float(), y)
    scaler.scale(loss).backward()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        forward_backward()
torch.cuda.current_stream().wait_stream(side)
optimizer.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = forward_backward()

saved = scaler.state_dict()
for step in range(6):
    if step == 3:
        scaler.load_state_dict(saved | {"scale": 2.0**8})
    x.normal_()
    y.random_(4)
    graph.replay()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item(), scaler.get_scale())
