"""A prefetcher alternates between two buffers on the device; the only graph reads one of them."""

import torch
from torch import nn


class Slots:
    def __init__(self, shape):
        self.slots = [torch.zeros(shape, device="cuda") for _ in range(2)]
        self.turn = 0

    @property
    def current(self):
        return self.slots[self.turn]

    def advance(self, batch):
        self.turn ^= 1  # guilty: the graph reads the slot of the capture
        self.current.copy_(batch)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 2)).cuda()
slots = Slots((4, 6))


@torch.no_grad()
def predict():
    return model(slots.current).softmax(-1)


batches = (torch.randn(4, 6) for _ in range(5))
slots.advance(next(batches))
predict()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    probabilities = predict()
graph.replay()
print("first", probabilities.amax().item())

for batch in batches:
    slots.advance(batch)
    graph.replay()
    print(probabilities.amax(1).tolist())
