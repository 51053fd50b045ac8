"""A decode batch that is smaller than its graph is padded."""

import torch
from torch import nn

ROWS, SLOTS, WIDTH = 4, 16, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("keys", torch.zeros(SLOTS, WIDTH))
        self.register_buffer("values", torch.zeros(SLOTS, WIDTH))

    def forward(self, x, slots):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys.index_copy_(0, slots, k)
        self.values.index_copy_(0, slots, v)
        return (q @ self.keys.t()).softmax(-1) @ self.values


class Runner:
    def __init__(self, layer):
        self.x = torch.zeros(ROWS, WIDTH, device="cuda")
        self.slots = torch.zeros(ROWS, dtype=torch.long, device="cuda")
        for _ in range(2):
            layer(self.x, self.slots)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = layer(self.x, self.slots)

    def decode(self, x, slots):
        rows = len(slots)
        self.x[:rows].copy_(x)  # <- bucket-padding-garbage
        self.slots[:rows].copy_(slots)  # <- bucket-padding-garbage
        self.graph.replay()
        return self.out[:rows].clone()


with torch.no_grad():
    layer = Attention().cuda().eval()
    runner = Runner(layer)
    for slots in ([0, 4, 8, 12], [1, 5, 9, 13], [2, 6], [3, 7]):
        slots = torch.tensor(slots, device="cuda")
        hidden = runner.decode(torch.randn(len(slots), WIDTH, device="cuda"), slots)
        print(hidden.norm().item())
