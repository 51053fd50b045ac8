"""A scheduler, made after the capture, changes a rate that is a tensor. It wraps `step`."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 2).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2, device="cuda"), capturable=True)
x, t = torch.randn(16, 8, device="cuda"), torch.randint(0, 2, (16,), device="cuda")


def step():
    opt.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(x), t)
    loss.backward()
    opt.step()
    return loss


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
opt.zero_grad(set_to_none=True)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    loss = step()
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
for _epoch in range(5):
    g.replay()
    opt._opt_called = True  # or PyTorch warns
    sched.step()
print(loss.item())
