"""Between two requests the running sum of a recurrent model is reset by making it anew."""

# The graph adds into the tensor that the attribute named while capturing; a new request starts from
# what the last one left there, and reads of the attribute see only zeros.

import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.Linear(width, width)
        self.reset(width)

    def reset(self, width=8):
        self.state = torch.zeros(1, width, device="cuda")  # guilty: the graph keeps the old state

    def forward(self, x):
        self.state.copy_(torch.tanh(self.cell(x) + self.state))  # guilty: the tensor of the capture
        return self.state


net = Recurrent(8).cuda().eval()
x = torch.zeros(1, 8, device="cuda")
with torch.no_grad():
    net(x)
    net.state.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        net(x)

for request in ([1.0, 2.0], [3.0]):
    net.reset()
    for value in request:
        x.fill_(value)
        graph.replay()
    print(net.state.sum().item())
