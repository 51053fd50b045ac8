"""Other threads read outputs, and nothing waits for them before the next replay."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    z = y + 1
    w = z + 1


def total(tensor):
    return tensor.sum().item()


with ThreadPoolExecutor(1) as pool:
    jobs = []
    for number in range(4):
        x.fill_(number)
        graph.replay()
        jobs.append(pool.submit(total, y))  # <- output-overwritten-by-next-replay
        jobs.append(pool.submit(partial(total, z)))  # <- output-overwritten-by-next-replay
    print([job.result() for job in jobs])


def write():
    while (item := outputs.get()) is not None:
        written.append(item[1].sum().item())


outputs, written = queue.Queue(), []
writer = threading.Thread(target=write)
writer.start()
for number in range(4):
    x.fill_(number)
    graph.replay()
    outputs.put((number, w))  # <- output-overwritten-by-next-replay
outputs.put(None)
writer.join()
print(written)
