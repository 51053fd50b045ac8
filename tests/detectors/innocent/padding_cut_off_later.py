"""The padding of the last batch goes through several ops before it is cut off or masked."""

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
weights = torch.zeros(8, device="cuda")
correct, weighted, kept, predicted, masked = 0, 0.0, [], [], []
for rows, targets in zip(samples.split(8), labels.split(8), strict=True):
    n = len(rows)
    x[:n].copy_(rows)
    y[:n].copy_(targets)
    graph.replay()
    correct += (logits.argmax(-1) == y)[:n].sum().item()
    weights.zero_()
    weights[:n] = 1
    weighted += (logits.softmax(-1).amax(-1) * weights).sum().item()
    kept.append(logits.log_softmax(-1).cpu())
    predicted.extend(logits.argmax(-1).tolist()[:n])
    valid = torch.arange(8, device="cuda") < n
    masked.append(logits.masked_fill(~valid[:, None], float("-inf")).amax(0))
every = torch.cat(kept)[: len(samples)]
print(correct, weighted, every.mean(), len(predicted), torch.stack(masked).sum())
