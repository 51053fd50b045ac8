"""A worker hands over a copy of its output before its stream has made it."""

import queue
import threading

import torch

x = torch.zeros(8, device="cuda")
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    y = x + 1
requests, answers = queue.Queue(), queue.Queue()


def work():
    with torch.cuda.stream(side):
        while requests.get() is not None:
            graph.replay()
            answers.put(y.clone())


worker = threading.Thread(target=work)
worker.start()
for _ in range(3):
    requests.put(1)
    answer = answers.get()
    print(answer.tolist())  # <- unsynchronized-io
requests.put(None)
worker.join()
