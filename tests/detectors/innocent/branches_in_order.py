"""Two branches, forked and joined with events; buffers reused in order."""

import torch

a, b = torch.cuda.Stream(), torch.cuda.Stream()
x = torch.randn(1024, device="cuda")
scratch = torch.zeros_like(x)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    main = torch.cuda.current_stream()
    scratch.copy_(x)
    fork = torch.cuda.Event()
    fork.record(main)
    a.wait_event(fork)
    b.wait_event(fork)
    with torch.cuda.stream(a):
        left = scratch.sin()
        left_done = torch.cuda.Event()
        left_done.record(a)
    with torch.cuda.stream(b):
        right = scratch.cos()
        b.wait_event(left_done)
        both = left + right
        right_done = torch.cuda.Event()
        right_done.record(b)
    main.wait_event(right_done)
    scratch.zero_()
    out = both * 2 + scratch
g.replay()
print(out.sum().item())
