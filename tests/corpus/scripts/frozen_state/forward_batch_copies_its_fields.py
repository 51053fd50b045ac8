"""The scheduler's batch is a dataclass; each step copies its fields for the graph."""

import dataclasses
import operator

import torch
from torch import nn


@dataclasses.dataclass
class ForwardBatch:
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    request_ids: tuple[str, ...] = ()

    @classmethod
    def dummy(cls, rows):
        return cls(*(torch.zeros(rows, dtype=torch.long, device="cuda") for _ in range(3)))

    def update(self, other):
        for name in ("input_ids", "positions", "out_cache_loc"):
            fetch = operator.attrgetter(name)
            fetch(self).copy_(fetch(other), non_blocking=True)
        self.request_ids = other.request_ids


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


def schedule(tokens, steps):
    rows = len(tokens)
    for step in range(steps):
        ids = torch.randint(0, 50, (rows,), device="cuda") if step == 0 else tokens
        places = torch.full((rows,), step, device="cuda")
        slots = torch.arange(rows, device="cuda") * 16 + step
        yield ForwardBatch(ids, places, slots, tuple(f"r{i}" for i in range(rows)))


model = Model().cuda().eval()
with torch.no_grad():
    static = ForwardBatch.dummy(4)
    model(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = model(static)
    answers = {}
    for batch in schedule(tokens, 6):
        static.update(batch)
        graph.replay()
        for request, token in zip(static.request_ids, tokens.tolist(), strict=True):
            answers.setdefault(request, []).append(token)
    print(answers)
