"""A thread captures, and gives the name of its input to another tensor."""

import threading

import torch


def serve():
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    x = torch.full((8,), 3.0, device="cuda")  # <- input-rebound-not-copied
    graph.replay()
    print(x[0].item(), y.sum().item())


server = threading.Thread(target=serve)
server.start()
server.join()
