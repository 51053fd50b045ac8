"""A branch on a side stream is used before the join."""

import torch

side = torch.cuda.Stream()
x = torch.randn(1 << 20, device="cuda")
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        a = x.sin().cos()
    b = x * 2
    c = a + b  # <- stream-race-in-capture
    main.wait_stream(side)
g.replay()
print(c.sum().item())
