"""A thread of a server captures, replays and trains, while the main thread waits."""

import threading

import torch

model = torch.nn.Linear(4, 4).cuda()
results = []


def serve():
    x = torch.ones(2, 4, device="cuda")
    expected = model(x * 3).sum()
    expected.backward()
    expected = expected.item()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x).sum()
        gradients = torch.autograd.grad(y, list(model.parameters()))
    x.fill_(3.0)
    graph.replay()
    assert abs(y.item() - expected) < 1e-4
    results.append(gradients[1].tolist())


server = threading.Thread(target=serve)
server.start()
server.join()
assert results == [[2.0] * 4], results
