"""The shared expert runs on a side stream during capture; its stream joins only if it is used."""

# cudaStreamEndCapture refuses a capture with a forked stream that was not joined
# (cudaErrorStreamCaptureUnjoined).

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.routed = nn.Linear(8, 8)
        self.shared = nn.Linear(8, 8)
        self.side = torch.cuda.Stream()
        self.statistics = torch.zeros(8, device="cuda")

    def forward(self, x, use_shared=True):
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            shared = self.shared(x)  # <- unjoined-side-stream
            self.statistics.add_(shared.mean(0))  # <- unjoined-side-stream
        y = self.routed(x)
        if use_shared:
            main.wait_stream(self.side)
            y = y + shared
        return y


experts = Experts().cuda()
x = torch.zeros(4, 8, device="cuda")
with torch.no_grad():
    experts(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # <- unjoined-side-stream
        y = experts(x, use_shared=False)
graph.replay()
print(y.sum().item())
