"""A table is made when it is first needed: in the capture, before anything runs it."""

import torch
from torch import nn

torch.manual_seed(0)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        if self.table is None:
            angles = torch.arange(8.0, device=x.device)
            self.table = angles.cos()
        return self.layer(x * self.table)  # <- capture-does-not-execute


warm = nn.Linear(8, 8).cuda()
model = Positions().cuda()
x = torch.ones(4, 8, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.no_grad(), torch.cuda.stream(side):
    warm(x)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    with torch.cuda.graph(graph):
        out = model(x)
    print(model(torch.ones(4, 8, device="cuda")).sum().item())
    for _ in range(3):
        x.normal_()
        graph.replay()
        print(out.sum().item())
