"""The answer is copied into pinned memory by the graph; the history keeps numpy views of it."""

# `.numpy()` shares the memory. Each replay writes the same pinned memory, so all entries of the
# history show the last answer.

import torch
from torch import nn

model = nn.Linear(4, 2).cuda().eval()
x = torch.zeros(1, 4, device="cuda")
answer = torch.empty(1, 2, pin_memory=True)

with torch.inference_mode():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer.copy_(model(x), non_blocking=True)  # <- output-overwritten-by-next-replay

history = []
for i in range(3):
    x.fill_(float(i))
    graph.replay()
    torch.cuda.synchronize()
    history.append(answer.numpy())  # <- output-overwritten-by-next-replay
print([float(row.sum()) for row in history])
