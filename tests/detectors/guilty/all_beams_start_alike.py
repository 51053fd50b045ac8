"""One state is copied to the rows of all beams, each time: correct if that is meant."""

import torch
from torch import nn

net = nn.Linear(16, 16).cuda().requires_grad_(False)


class Beams:
    def __init__(self, width):
        self.state = torch.zeros(width, 16, device="cuda")
        net(self.state)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.scores = net(self.state).log_softmax(-1)

    def search(self, state):
        self.state.copy_(state)  # <- replay-with-other-shape
        self.graph.replay()
        return self.scores.sum().item()


narrow, wide = Beams(2), Beams(8)
for _ in range(3):
    state = torch.randn(1, 16, device="cuda")
    print(narrow.search(state), wide.search(state))
