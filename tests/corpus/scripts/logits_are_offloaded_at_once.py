"""Log probabilities go to the host on their own stream while the next step runs."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50)).cuda().requires_grad_(False)
ids = torch.zeros(8, dtype=torch.long, device="cuda")
model(ids)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    scores = model(ids).log_softmax(-1)
    chosen = scores.argmax(-1)

offload = torch.cuda.Stream()
host = [torch.empty(8, 50, pin_memory=True) for _ in range(6)]
for buffer in host:
    graph.replay()  # guilty: overwrites what is still being copied
    with torch.cuda.stream(offload):
        buffer.copy_(scores, non_blocking=True)  # guilty: does not wait for the replay
    ids.copy_(chosen)
torch.cuda.synchronize()
print([round(buffer.max().item(), 3) for buffer in host])
