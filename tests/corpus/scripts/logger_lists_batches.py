"""The captured step logs the size of its batch in a list of a dictionary."""

import torch
from torch import nn


class Logger:
    def __init__(self):
        self.rows = {"batch": [], "lr": []}

    def log(self, **kw):
        for k, v in kw.items():
            self.rows[k].append(v)  # guilty: no replay logs


log = Logger()
model = nn.Linear(8, 2).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8, device="cuda")


def step():
    opt.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    opt.step()
    log.log(batch=x.shape[0])


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    step()
log.rows["batch"].clear()
for _ in range(6):
    g.replay()
torch.cuda.synchronize()
print("samples", sum(log.rows["batch"]))  # guilty: 0
