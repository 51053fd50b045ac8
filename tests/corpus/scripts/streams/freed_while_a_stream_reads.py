"""A tensor is freed while the side stream still reads it, and the next result gets its memory."""

import torch

side = torch.cuda.Stream()
x = torch.randn(1 << 16, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    main = torch.cuda.current_stream()
    doubled = x * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        total = doubled.square().sum()
    del doubled
    halved = x / 2  # <- stream-race-in-capture
    main.wait_stream(side)
g.replay()
print((total + halved.sum()).item())
