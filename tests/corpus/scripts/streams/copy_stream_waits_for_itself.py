"""Uploads run on a copy stream; an event should hold the replay back."""

import torch
from torch import nn


class Uploader:
    def __init__(self, static):
        self.static = static
        self.stream = torch.cuda.Stream()
        self.done = torch.cuda.Event()

    def send(self, batch):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.static.copy_(batch, non_blocking=True)  # <- unsynchronized-io
            self.done.record()

    def wait(self):
        self.done.wait(self.stream)  # <- unsynchronized-io


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 2)).cuda().eval()
model.requires_grad_(False)
static = torch.zeros(64, 16, device="cuda")
model(static)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = model(static).mean(0)

uploader = Uploader(static)
batches = [torch.full((64, 16), float(i)).pin_memory() for i in range(4)]
kept = []
for batch in batches:
    uploader.send(batch)
    uploader.wait()
    graph.replay()  # <- unsynchronized-io
    kept.append(out.clone())
print(torch.stack(kept).tolist())
