"""State on the device that each replay moves: a counter, a KV cache, an accumulator."""

import torch


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(16, 4))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64))

    def forward(self, key):
        self.keys.index_copy_(0, self.length, key)
        self.length.add_(1)
        return self.keys.sum()


cache = Cache().cuda()
key = torch.zeros(1, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    total = cache(key)
for token in range(5):
    key.fill_(token)
    graph.replay()
print(total.item(), cache.length.item())
