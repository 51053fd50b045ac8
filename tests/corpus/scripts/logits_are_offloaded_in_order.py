"""Log probabilities go to the host on their own stream; both streams wait where they must."""

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

main, offload = torch.cuda.current_stream(), torch.cuda.Stream()
host = [torch.empty(8, 50, pin_memory=True) for _ in range(6)]
copied = torch.cuda.Event()
for buffer in host:
    main.wait_event(copied)
    graph.replay()
    ids.copy_(chosen)
    offload.wait_stream(main)
    with torch.cuda.stream(offload):
        buffer.copy_(scores, non_blocking=True)
        copied.record()
offload.synchronize()
print([round(buffer.max().item(), 3) for buffer in host])
