"""Double buffering: two input slots, each with its own graph, filled while the other one runs."""

# A slot is written by the upload stream only after the event behind its last replay.

import torch
from torch import nn


class Slot:
    def __init__(self, model, uploads):
        self.uploads = uploads
        self.x = torch.zeros(8, 4, device="cuda")
        self.filled, self.free = torch.cuda.Event(), torch.cuda.Event()
        self.free.record()
        model(self.x)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = model(self.x)

    def fill(self, batch):
        with torch.cuda.stream(self.uploads):
            self.uploads.wait_event(self.free)
            self.x.copy_(batch, non_blocking=True)
            self.filled.record(self.uploads)

    def run(self):
        torch.cuda.current_stream().wait_event(self.filled)
        self.graph.replay()
        self.free.record()
        return self.y.clone()


model = nn.Linear(4, 2).cuda().eval().requires_grad_(False)
uploads = torch.cuda.Stream()
slots = [Slot(model, uploads) for _ in range(2)]
data = [torch.full((8, 4), float(i)).pin_memory() for i in range(6)]
outs = []
slots[0].fill(data[0])
for i in range(6):
    if i + 1 < 6:
        slots[(i + 1) % 2].fill(data[i + 1])
    outs.append(slots[i % 2].run())
torch.cuda.synchronize()
print([o.sum().item() for o in outs])
