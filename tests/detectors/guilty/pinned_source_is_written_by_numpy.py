"""A graph uploads pinned memory, which the host fills through NumPy before the next replay."""

import ctypes

import numpy as np
import torch

inbox = torch.zeros(6, pin_memory=True)
view = inbox.numpy()
wanted, position = torch.zeros(6, device="cuda"), torch.zeros(6, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    wanted.copy_(inbox, non_blocking=True)
    position.add_(wanted)


class Drive:
    def __init__(self):
        self.wanted = view

    def command(self, values):
        self.wanted[:] = values  # <- pinned-source-frozen
        graph.replay()


drive = Drive()
for point in np.linspace(0, 1, 4):
    drive.command(point)
torch.cuda.synchronize()

graph.replay()
view[0] = 5  # <- pinned-source-frozen
graph.replay()
view += 1  # <- pinned-source-frozen
graph.replay()
view.fill(7)  # <- pinned-source-frozen
graph.replay()
np.copyto(view, np.arange(6))  # <- pinned-source-frozen
graph.replay()
np.multiply(view, 3, out=view)  # <- pinned-source-frozen
graph.replay()
inbox.numpy()[2:] = 1  # <- pinned-source-frozen
graph.replay()
memoryview(view)[1] = 9  # <- pinned-source-frozen
graph.replay()
ctypes.memset(inbox.data_ptr(), 0, 8)  # <- pinned-source-frozen
torch.cuda.synchronize()

rows = torch.zeros(2, 6, pin_memory=True)
array = rows.numpy()
static, total = torch.zeros(6, device="cuda"), torch.zeros(6, device="cuda")
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second):
    total.add_(static)
for step in range(1, 4):
    array[0] = step  # <- pinned-source-frozen
    static.copy_(rows[0], non_blocking=True)
    second.replay()
print(total.tolist(), position.tolist())
