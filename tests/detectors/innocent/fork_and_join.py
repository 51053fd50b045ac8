"""A capture that forks to a side stream and joins it."""

import torch

side = torch.cuda.Stream()
x = torch.randn(64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    left = x * 2
    with torch.cuda.stream(side):
        right = x * 3
    main.wait_stream(side)
    out = left + right
graph.replay()
print(torch.allclose(out, x * 5))
