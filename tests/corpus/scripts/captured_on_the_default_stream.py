"""A benchmark that calls `capture_begin` by hand, without a stream of its own."""

import time

import torch


def workload(x, weight):
    for _ in range(8):
        x = torch.tanh(x @ weight)
    return x


x, weight = torch.randn(64, 256, device="cuda"), torch.randn(256, 256, device="cuda")
for _ in range(3):
    workload(x, weight)
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
graph.capture_begin()  # guilty: not on the default stream
y = workload(x, weight)
graph.capture_end()

start = time.perf_counter()
for _ in range(10):
    graph.replay()
torch.cuda.synchronize()
print(f"{(time.perf_counter() - start) * 100:.2f} ms per replay")
