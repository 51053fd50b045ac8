"""A graph for each direction; the names are swapped so that `u` is always the newest grid."""

import torch

u = torch.rand(16, 16, device="cuda")
v = torch.empty_like(u)


def smooth(src, dst):
    torch.add(src * 0.6, src.roll(1, 0) + src.roll(-1, 0), alpha=0.2, out=dst)


smooth(u, v)
torch.cuda.synchronize()
there, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(there):
    smooth(u, v)
with torch.cuda.graph(back):
    smooth(v, u)
for step in range(7):
    (back if step % 2 else there).replay()
    u, v = v, u
print(u.mean().item(), v.std().item())
