"""What a first call has made in a capture is read by other graphs; its own was not replayed."""

from functools import cached_property, lru_cache

import torch
from torch import nn

warm = torch.ones(2, 2, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()  # makes the handles of cuBLAS, which a capture must not
torch.set_grad_enabled(False)

weight = torch.ones(4, 4, device="cuda")
sizes = [torch.ones(size, 4, device="cuda") for size in (3, 2, 1)]


class ByNone:
    codes = None

    def __call__(self, x):
        if self.codes is None:
            self.codes = (weight / weight.amax()).to(torch.int8)  # <- capture-does-not-execute
        return x @ self.codes.to(x.dtype)


class ByKey:
    def __init__(self):
        self.tables = {}

    def __call__(self, x):
        if x.shape[-1] not in self.tables:
            self.tables[x.shape[-1]] = weight[0].cos()  # <- capture-does-not-execute
        return x * self.tables[x.shape[-1]]


class ByProperty:
    @cached_property
    def folded(self):
        return weight * 3  # <- capture-does-not-execute

    def __call__(self, x):
        return x @ self.folded


@lru_cache
def mask(length):
    return weight.new_ones(length, length).tril()  # <- capture-does-not-execute


class Accumulator:
    total = None

    def __call__(self, x):
        if self.total is None:
            self.total = torch.zeros(4, device="cuda")  # <- capture-does-not-execute
        self.total.add_(x.sum(0))
        return self.total.clone()


class OneRow:
    rows = None

    def __call__(self, x):
        if self.rows is None:
            self.rows = torch.zeros(3, 4, device="cuda")  # <- capture-does-not-execute
        self.rows[:1].copy_(x[:1])
        return self.rows.sum()


for model in (ByNone(), ByKey(), ByProperty(), lambda x: x @ mask(4), Accumulator(), OneRow()):
    graphs = []
    for x in sizes:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graphs.append((graph, y))
    graph, y = graphs[-1]
    graph.replay()
    print(y.sum().item())


def refused(x):
    y = by_none(x)
    raise ValueError("no logger")
    return y


by_none, x = ByNone(), sizes[0]
for run in (refused, by_none):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            y = run(x)
    except ValueError:
        continue
    graph.replay()
    print(y.sum().item())


class ByShape:
    rows = None

    def __call__(self, x):
        if self.rows is None:
            self.rows = weight[0] * 2  # <- capture-does-not-execute
        return x * self.rows


by_shape = ByShape()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # to see how much memory it takes
    by_shape(x)
del graph
print(by_shape(x).sum().item())


def too_long(x):
    by_table(x)
    raise ValueError("too long")


class ByTable:
    table = None

    def __call__(self, x):
        if self.table is None:
            self.table = weight[1] * 2  # <- capture-does-not-execute
        return x * self.table


by_table = ByTable()
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        y = too_long(x)
except ValueError:
    y = by_table(x)
print(y.sum().item())

# Here one graph goes on with the result of another.
encode, decode = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
layer = nn.Linear(4, 4).cuda()
with torch.cuda.graph(encode):
    hidden = layer(x)
with torch.cuda.graph(decode):
    answer = layer(hidden)
for _ in range(2):
    decode.replay()  # <- capture-does-not-execute
    encode.replay()
    print(answer.sum().item())
