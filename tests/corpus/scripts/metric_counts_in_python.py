"""A metric adds up on the device and counts its rows in Python; its update is captured."""

import torch
from torch import nn


class Accuracy:
    def __init__(self):
        self.correct = torch.zeros((), device="cuda")
        self.total = 0

    def update(self, logits, labels):
        self.correct += (logits.argmax(-1) == labels).sum()
        self.total += labels.numel()  # guilty: no replay adds to it

    def compute(self):
        return self.correct.item() / self.total  # guilty: the number of the captures


model = nn.Linear(8, 4).cuda().eval()
metric = Accuracy()
x = torch.randn(16, 8, device="cuda")
labels = torch.randint(4, (16,), device="cuda")


@torch.no_grad()
def evaluate():
    logits = model(x)
    metric.update(logits, labels)
    return logits


evaluate()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    evaluate()
for _ in range(4):
    x.normal_()
    graph.replay()
print(f"accuracy {metric.compute():.3f}")
