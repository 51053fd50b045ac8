"""A graph uploads pinned memory, which the host fills through NumPy once it has been read."""

import numpy as np
import torch

rows = torch.zeros(2, 6, pin_memory=True)
view = rows.numpy()
wanted, position = torch.zeros(6, device="cuda"), torch.zeros(6, device="cuda")
graphs = []
for row in rows:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wanted.copy_(row, non_blocking=True)
        position.add_(wanted)
    graphs.append((graph, torch.cuda.Event()))

# Each of two rows waits for its own upload.
for step in range(6):
    graph, uploaded = graphs[step % 2]
    uploaded.synchronize()
    view[step % 2] = step
    graph.replay()
    uploaded.record()
torch.cuda.synchronize()

# The values that are there already, and a wait on the line that writes.
graph, _ = graphs[0]
for _ in range(3):
    view[0] = 4
    graph.replay()
torch.cuda.current_stream().synchronize()
np.copyto(view[0], 5)
graph.replay()
torch.cuda.synchronize(), view.fill(6)

# The device itself fills the pinned memory.
echo = torch.ones(6, pin_memory=True)
echoed = echo.numpy()
back = torch.cuda.CUDAGraph()
with torch.cuda.graph(back):
    wanted.copy_(echo, non_blocking=True)
    echo.copy_(wanted * 2, non_blocking=True)
for _ in range(3):
    back.replay()
torch.cuda.synchronize()
print(echoed.sum(), position.tolist())
