"""An evaluation counts what the padding of the last batch gives, too."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3).cuda().eval()
x = torch.zeros(8, 8, device="cuda")
y = torch.zeros(8, dtype=torch.long, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(x)

samples, labels = torch.randn(20, 8), torch.randint(0, 3, (20,))
correct, best, spread = 0, [], []
for rows, targets in zip(samples.split(8), labels.split(8), strict=True):
    x[: len(rows)].copy_(rows)
    y[: len(rows)].copy_(targets)
    graph.replay()
    hits = logits.argmax(-1) == y
    correct += hits.sum().item()  # <- bucket-padding-garbage
    best.append(logits[:, 0].max().item())  # <- bucket-padding-garbage
    spread.append(logits.softmax(-1).std(0))  # <- bucket-padding-garbage
print(correct / len(samples), best, spread)
