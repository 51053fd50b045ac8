"""A graph uploads pinned memory that the host fills by its address."""

import ctypes

import torch

inbox = torch.zeros(6, pin_memory=True)
position = torch.zeros(6, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    position.add_(inbox.to("cuda", non_blocking=True))
graph.replay()
ctypes.memset(inbox.data_ptr(), 1, 8)
graph.replay()  # <- pinned-source-frozen
torch.cuda.synchronize()
ctypes.memset(inbox.data_ptr(), 0, 8)
graph.replay()
print(position.tolist())
