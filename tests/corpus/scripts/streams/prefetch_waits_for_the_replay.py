"""The next batch is uploaded on a side stream, which waits until this one is read."""

# Both directions are ordered by events.

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).cuda().eval()
static = torch.zeros(32, 16, device="cuda")
batches = [torch.full((32, 16), float(i)).pin_memory() for i in range(4)]

with torch.no_grad():
    model(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = model(static)

uploads = torch.cuda.Stream()
arrived = torch.cuda.Event()
consumed = torch.cuda.Event()
consumed.record()
results = []


def upload(batch):
    with torch.cuda.stream(uploads):
        uploads.wait_event(consumed)
        static.copy_(batch, non_blocking=True)
        arrived.record(uploads)


upload(batches[0])
for i in range(4):
    torch.cuda.current_stream().wait_event(arrived)
    graph.replay()
    consumed.record()
    results.append(scores.clone())
    if i + 1 < 4:
        upload(batches[i + 1])
torch.cuda.synchronize()
print([r.mean().item() for r in results])
