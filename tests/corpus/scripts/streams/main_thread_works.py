"""The main thread works on the device while a thread that it has started captures."""

import threading

import torch

x = torch.ones(8, device="cuda")
capturing, worked = threading.Event(), threading.Event()
results = []


def serve():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        capturing.set()
        worked.wait()
    graph.replay()
    results.append(y.tolist())


server = threading.Thread(target=serve)
server.start()
capturing.wait()
z = x + 1  # <- other-thread-cuda-call
worked.set()
server.join()
assert results == [[2.0] * 8], results
