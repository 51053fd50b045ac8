"""The main stream overwrites what the side stream still reads."""

import torch

side = torch.cuda.Stream()
x = torch.randn(1 << 20, device="cuda")
buffer = torch.zeros_like(x)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    main = torch.cuda.current_stream()
    buffer.copy_(x)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        total = buffer.square().sum()
    buffer.zero_()  # <- stream-race-in-capture
    main.wait_stream(side)
g.replay()
print(total.item())
