"""The shared expert runs on a side stream and joins through an event."""

# `record_stream` is not needed during capture; the event orders the streams inside of the graph.

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.routed = nn.Linear(8, 8)
        self.shared = nn.Linear(8, 8)
        self.side = torch.cuda.Stream()
        self.forked, self.done = torch.cuda.Event(), torch.cuda.Event()

    def forward(self, x):
        main = torch.cuda.current_stream()
        self.forked.record(main)
        with torch.cuda.stream(self.side):
            self.side.wait_event(self.forked)
            shared = self.shared(x)
            self.done.record(self.side)
        y = self.routed(x)
        main.wait_event(self.done)
        return y + shared


experts = Experts().cuda()
x = torch.zeros(4, 8, device="cuda")
with torch.no_grad():
    experts(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = experts(x)
    for i in range(3):
        x.fill_(float(i))
        graph.replay()
        print(y.sum().item())
