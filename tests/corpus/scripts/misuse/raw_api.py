"""capture_begin and capture_end by hand, keep_graph, instantiate, reset and a second graph."""

import torch

x = torch.ones(8, device="cuda")
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
graph = torch.cuda.CUDAGraph(keep_graph=True)
with torch.cuda.stream(stream):
    graph.capture_begin()
    y = x * 2
    graph.capture_end()
    graph.instantiate()
torch.cuda.current_stream().wait_stream(stream)
graph.replay()
torch.cuda.synchronize()
print(y.sum().item(), graph.pool() is not None)
graph.reset()
again = torch.cuda.CUDAGraph()
with torch.cuda.graph(again, stream=stream):
    z = x * 3
again.replay()
print(z.sum().item())
