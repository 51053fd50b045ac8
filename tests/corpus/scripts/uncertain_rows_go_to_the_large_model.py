"""A cascade: a small model answers, and only the rows that it doubts go to the large one."""

import torch
from torch import nn
from torch.nn import functional


class GraphedModel:
    def __init__(self, net, rows, width):
        self.rows = rows
        self.x = torch.zeros(rows, width, device="cuda")
        with torch.no_grad():
            net(self.x)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.probabilities = net(self.x).softmax(-1)

    def __call__(self, x):
        self.x.copy_(functional.pad(x, (0, 0, 0, self.rows - len(x))))
        self.graph.replay()
        return self.probabilities[: len(x)]


class Cascade:
    def __init__(self, small, large, width, doubted=0.3, bucket=8):
        self.small = GraphedModel(small, 32, width)
        self.large = GraphedModel(large, bucket, width)
        self.doubted = doubted

    def __call__(self, x):
        probabilities = self.small(x)
        confidence, answers = probabilities.max(-1)
        doubtful = (confidence < self.doubted).nonzero().squeeze(1)
        for rows in doubtful.split(self.large.rows):
            if len(rows):
                answers[rows] = self.large(x[rows.to(x.device)]).argmax(-1)
        return answers.tolist(), len(doubtful)


torch.manual_seed(0)
small = nn.Linear(20, 10).cuda()
large = nn.Sequential(nn.Linear(20, 128), nn.GELU(), nn.Linear(128, 10)).cuda()
cascade = Cascade(small, large, 20)
for size in (32, 20, 7):
    answers, asked = cascade(torch.randn(size, 20))
    print(size, asked, answers[:5])
