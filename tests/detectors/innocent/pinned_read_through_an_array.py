"""NumPy arrays with the memory of pinned tensors, each read after a wait, or passed on."""

import queue
import threading

import numpy as np
import torch

x = torch.zeros(8, device="cuda")
pinned = torch.empty(8, pin_memory=True)
view = pinned.numpy()
rows = torch.zeros(3, 8, pin_memory=True)
arrays = rows.numpy()
done = [torch.cuda.Event() for _ in range(3)]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1

# The host waits.
for step in range(3):
    x.fill_(step)
    graph.replay()
    pinned.copy_(y, non_blocking=True)
    print(view.shape, view.reshape(2, 4).nbytes, np.asarray(view) is view)
    if step == 0:
        torch.cuda.synchronize()
    elif step == 1:
        torch.cuda.current_stream().synchronize()
    else:
        done[0].record()
        done[0].synchronize()
    print(view.sum(), float(view[0]), np.array(view), f"{view}")

# A ring: other rows are under way.
for step in range(6):
    graph.replay()
    row = step % 3
    rows[row].copy_(y, non_blocking=True)
    done[row].record()
    if step >= 2:
        oldest = (step + 1) % 3
        done[oldest].synchronize()
        print(arrays[oldest].sum(), arrays[oldest, 0])
torch.cuda.synchronize()

# Another thread waits and reads.
waiting: queue.Queue = queue.Queue()


def serve():
    event, array = waiting.get()
    event.synchronize()
    print(array.sum())


thread = threading.Thread(target=serve)
thread.start()
graph.replay()
pinned.copy_(y, non_blocking=True)
done[0].record()
waiting.put((done[0], view))
parts = [view, arrays]
thread.join()
torch.cuda.synchronize()


def fetched(array):
    torch.cuda.current_stream().synchronize()
    return array.sum()


graph.replay()
pinned.copy_(y, non_blocking=True)
print(fetched(view))
graph.replay()
pinned.copy_(y, non_blocking=True)
print(y.sum().item(), view.sum(), len(parts))


class Fetched:
    def __init__(self, tensor):
        tensor.copy_(y, non_blocking=True)
        self.array = tensor[:4].numpy()
        self.done = torch.cuda.Event()
        self.done.record()


for _ in range(2):
    graph.replay()
    fetched_rows = Fetched(pinned)
    early = pinned.numpy()
    fetched_rows.done.synchronize()
    print(fetched_rows.array.sum(), early.max())
