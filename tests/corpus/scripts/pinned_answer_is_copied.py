"""The answer is copied into pinned memory by the graph; the history keeps copies of it."""

import torch
from torch import nn

model = nn.Linear(4, 2).cuda().eval()
x = torch.zeros(1, 4, device="cuda")
answer = torch.empty(1, 2, pin_memory=True)
view = answer.numpy()

with torch.inference_mode():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer.copy_(model(x), non_blocking=True)

history = []
for i in range(3):
    x.fill_(float(i))
    graph.replay()
    torch.cuda.current_stream().synchronize()
    history.append(view.copy())
print([float(row.sum()) for row in history])
