"""The scheduler's batch is a dataclass; each step fills it for the graph."""

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class ForwardBatch:
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor

    @classmethod
    def dummy(cls, rows):
        return cls(*(torch.zeros(rows, dtype=torch.long, device="cuda") for _ in range(3)))

    def update(self, other):
        for field in dataclasses.fields(other):
            setattr(self, field.name, getattr(other, field.name))  # guilty: the graph has the old


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.register_buffer("cache", torch.zeros(64, 16))
        self.head = nn.Linear(16, 50)

    def forward(self, batch):
        hidden = self.tokens(batch.input_ids) + self.places(batch.positions)
        self.cache.index_copy_(0, batch.out_cache_loc, hidden)
        context = (hidden @ self.cache.t()).softmax(-1) @ self.cache
        return self.head(hidden + context).argmax(-1)


def schedule(rows, steps):
    ids = torch.randint(0, 50, (rows,))
    for step in range(steps):
        places = torch.full((rows,), step)
        slots = torch.arange(rows) * 16 + step
        yield ForwardBatch(ids.cuda(), places.cuda(), slots.cuda())


model = Model().cuda().eval()
with torch.no_grad():
    static = ForwardBatch.dummy(4)
    model(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = model(static)
    for batch in schedule(4, 6):
        static.update(batch)
        graph.replay()
        print(tokens.tolist())
