"""The precision of a server is a flag that `torch.autocast` reads in the captured forward."""

# Which kernels run is decided while capturing.

import torch
from torch import nn


class Server:
    def __init__(self):
        self.model = nn.Linear(8, 8).cuda().eval()
        self.fast = True
        self.x = torch.zeros(2, 8, device="cuda")

    @torch.no_grad()
    def forward(self):
        with torch.autocast(
            "cuda", dtype=torch.bfloat16, enabled=self.fast
        ):  # guilty: decided while capturing
            return self.model(self.x)  # guilty: the precision of the capture

    def capture(self):
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = self.forward()

    def answer(self, row, exact=False):
        self.fast = not exact  # guilty: the graph does not see it
        self.x.copy_(row)
        self.graph.replay()
        return self.y.float().cpu()


server = Server()
server.capture()
row = torch.randn(2, 8)
print((server.answer(row) - server.answer(row, exact=True)).abs().max().item())
