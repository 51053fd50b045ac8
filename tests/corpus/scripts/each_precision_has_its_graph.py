"""A server captures its forward once for each precision and replays the one that is asked for."""

import torch
from torch import nn


class Server:
    def __init__(self):
        self.model = nn.Linear(8, 8).cuda().eval()
        self.fast = True
        self.x = torch.zeros(2, 8, device="cuda")
        self.graphs = {}

    @torch.no_grad()
    def forward(self):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.fast):
            return self.model(self.x)

    def capture(self):
        for self.fast in (True, False):
            self.forward()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = self.forward()
            self.graphs[self.fast] = graph, y

    def answer(self, row, exact=False):
        self.fast = not exact
        self.x.copy_(row)
        graph, y = self.graphs[self.fast]
        graph.replay()
        return y.float().cpu()


server = Server()
server.capture()
row = torch.randn(2, 8)
print((server.answer(row) - server.answer(row, exact=True)).abs().max().item())
