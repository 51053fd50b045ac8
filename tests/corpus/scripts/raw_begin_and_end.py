"""capture_begin and capture_end by hand, on a stream of its own."""

import torch

x = torch.ones(4, device="cuda")
x.cumsum(0)
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
torch.cuda.synchronize()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    graph.capture_begin()
    y = x.cumsum(0)
    graph.capture_end()
torch.cuda.current_stream().wait_stream(stream)

x.fill_(3)
graph.replay()
print(y.tolist())  # eager: [3.0, 6.0, 9.0, 12.0]
