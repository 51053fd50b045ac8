"""The next batch is uploaded on a side stream while the replay may still read the current one."""

# The side stream waits for nothing that the main stream does after the first copy, so the second
# upload and the first replay are unordered: a write after read race on the static input.

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
results = []


def upload(batch):
    with torch.cuda.stream(uploads):
        static.copy_(batch, non_blocking=True)  # guilty: the previous replay may still read it
        arrived.record(uploads)


upload(batches[0])
for i in range(4):
    torch.cuda.current_stream().wait_event(arrived)
    graph.replay()
    results.append(scores.clone())
    if i + 1 < 4:
        upload(batches[i + 1])
torch.cuda.synchronize()
print([r.mean().item() for r in results])
