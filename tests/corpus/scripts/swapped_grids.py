"""Heat equation: one captured step from `u` to `v`; the names are swapped after each replay."""

import torch

N, ALPHA = 32, 0.1
u = torch.zeros(N, N, device="cuda")
u[N // 2, N // 2] = 100.0
v = u.clone()


def laplace(src, dst):
    dst[1:-1, 1:-1] = src[1:-1, 1:-1] + ALPHA * (
        src[2:, 1:-1] + src[:-2, 1:-1] + src[1:-1, 2:] + src[1:-1, :-2] - 4 * src[1:-1, 1:-1]
    )


laplace(u, v)
torch.cuda.synchronize()

g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    laplace(u, v)  # guilty: the grids of the capture

for _ in range(20):
    g.replay()
    u, v = v, u  # guilty: the graph goes on reading the first u and writing the first v
print("centre", u[N // 2, N // 2].item(), "heat", u.sum().item())
