"""Blocks of a paged cache are moved together between replays."""

import torch
from torch import nn

BLOCKS, SIZE, WIDTH, ROWS = 8, 4, 8, 2


class PagedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("cache", torch.zeros(2, BLOCKS, SIZE, WIDTH))

    def forward(self, x, tables, positions):
        q, k, v = self.qkv(x).chunk(3, -1)
        block = tables.gather(1, (positions // SIZE)[:, None]).squeeze(1)
        self.cache[0].index_put_((block, positions % SIZE), k)
        self.cache[1].index_put_((block, positions % SIZE), v)
        keys, values = (part[tables].flatten(1, 2) for part in self.cache)
        seen = torch.arange(keys.shape[1], device=x.device) <= positions[:, None]
        scores = torch.einsum("bd,bsd->bs", q, keys).masked_fill(~seen, float("-inf"))
        return torch.einsum("bs,bsd->bd", scores.softmax(-1), values)


class Engine:
    def __init__(self):
        self.layer = PagedAttention().cuda().eval()
        self.owned = [[5, 2], [7, 0]]
        self.tables = torch.tensor(self.owned, device="cuda")
        self.positions = torch.zeros(ROWS, dtype=torch.long, device="cuda")
        self.x = torch.zeros(ROWS, WIDTH, device="cuda")

    def capture(self):
        self.layer(self.x, self.tables, self.positions)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.layer(self.x, self.tables, self.positions)

    def decode(self, x):
        self.x.copy_(x)
        self.graph.replay()
        self.positions += 1
        return self.out.sum().item()

    def compact(self):
        used = [block for blocks in self.owned for block in blocks]
        order = used + [block for block in range(BLOCKS) if block not in used]
        cache = self.layer.cache
        cache.copy_(cache[:, torch.tensor(order, device="cuda")])
        self.owned = [[order.index(block) for block in blocks] for blocks in self.owned]
        self.tables.copy_(torch.tensor(self.owned))


with torch.no_grad():
    engine = Engine()
    engine.capture()
    for number in range(7):
        print(engine.decode(torch.randn(ROWS, WIDTH)))
        if number == 3:
            engine.compact()
