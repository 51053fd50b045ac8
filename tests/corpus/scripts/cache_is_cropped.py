import torch
from torch import nn
from torch.nn import functional


class Cache:
    def __init__(self, length, dim):
        self.keys = torch.zeros(1, length, dim, device="cuda")
        self.values = torch.zeros(1, length, dim, device="cuda")

    def crop(self, n):
        """Forget rejected tokens."""
        empty = torch.zeros_like(self.keys)
        self.keys = torch.cat([self.keys[:, :n], empty[:, n:]], dim=1)  # guilty: another tensor
        self.values = torch.cat([self.values[:, :n], empty[:, n:]], dim=1)  # guilty: another tensor


class Decoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, position, cache):
        q, k, v = self.qkv(x).chunk(3, -1)
        cache.keys.index_copy_(1, position, k)
        cache.values.index_copy_(1, position, v)
        return self.out(functional.scaled_dot_product_attention(q, cache.keys, cache.values))


model, cache = Decoder(32).cuda().eval(), Cache(16, 32)
x = torch.randn(1, 1, 32, device="cuda")
position = torch.zeros(1, dtype=torch.int64, device="cuda")
with torch.inference_mode():
    model(x, position, cache)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x, position, cache)
    for step in range(8):
        position.fill_(step)
        graph.replay()
        x.copy_(out)
        if step % 4 == 3:
            cache.crop(step - 1)
    print(out.norm().item())
