"""The clipping threshold is raised after warm-up, by global statement."""

import torch
from torch import nn

MAX_NORM = 0.1


def set_max_norm(value):
    global MAX_NORM
    MAX_NORM = value  # <- python-scalar-frozen


model = nn.Linear(8, 8).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), capturable=True)
x = torch.randn(4, 8, device="cuda")


def step():
    opt.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM, foreach=True)
    opt.step()
    return loss


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    loss = step()
for i in range(4):
    if i == 2:
        set_max_norm(1.0)
    x.copy_(torch.randn(4, 8, device="cuda"))
    g.replay()
print(loss.item())
