"""Search in an index larger than the device: shards are copied ahead into two slots."""

import torch


class ShardedIndex:
    def __init__(self, shards, width, top):
        self.shards = [shard.pin_memory() for shard in shards]
        rows = len(shards[0])
        self.copying = torch.cuda.Stream()
        self.query = torch.zeros(4, width, device="cuda")
        self.slots = [torch.zeros(rows, width, device="cuda") for _ in range(2)]
        self.arrived = [torch.cuda.Event() for _ in range(2)]
        self.released = [torch.cuda.Event() for _ in range(2)]
        self.offset = torch.zeros((), dtype=torch.int64, device="cuda")
        self.best = torch.zeros(4, top, device="cuda")
        self.ids = torch.zeros(4, top, dtype=torch.int64, device="cuda")
        self.rows, self.top = rows, top
        self.graphs = [self.capture(slot) for slot in self.slots]

    def scan(self, slot):
        scores, rows = (self.query @ slot.T).topk(self.top)
        scores = torch.cat([self.best, scores], 1)
        ids = torch.cat([self.ids, rows + self.offset], 1)
        best, chosen = scores.topk(self.top)
        self.best.copy_(best)
        self.ids.copy_(ids.gather(1, chosen))
        self.offset.add_(self.rows)

    def capture(self, slot):
        self.scan(slot)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.scan(slot)
        return graph

    def load(self, number):
        slot = number % 2
        with torch.cuda.stream(self.copying):
            self.copying.wait_event(self.released[slot])
            self.slots[slot].copy_(self.shards[number], non_blocking=True)
            self.arrived[slot].record()

    def search(self, query):
        self.query.copy_(query)
        self.best.fill_(-torch.inf)
        self.offset.zero_()
        for event in self.released:
            event.record()
        self.load(0)
        for number in range(len(self.shards)):
            if number + 1 < len(self.shards):
                self.load(number + 1)
            slot = number % 2
            torch.cuda.current_stream().wait_event(self.arrived[slot])
            self.graphs[slot].replay()
            self.released[slot].record()
        return self.ids.tolist()


torch.manual_seed(0)
index = ShardedIndex([torch.randn(64, 16) for _ in range(5)], 16, top=3)
for _ in range(3):
    print(index.search(torch.randn(4, 16)))
