"""A worker thread owns the graph and its stream; the main thread fills the input."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).cuda().eval()
model.requires_grad_(False)
static = torch.zeros(8, 32, device="cuda")
requests, answers = queue.Queue(), queue.Queue()


class Worker(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.stream = torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            model(static)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.out = model(static).softmax(-1)

    def run(self):
        while requests.get() is not None:
            with torch.cuda.stream(self.stream):
                self.graph.replay()  # guilty: does not wait for the stream that wrote the input
                answers.put(self.out.clone())  # guilty: handed over before it is written
            self.stream.synchronize()


worker = Worker()
worker.start()
for i in range(4):
    static.copy_(torch.full((8, 32), float(i), device="cuda"))  # guilty: on another stream
    requests.put(i)
    print(i, answers.get().sum().item())  # guilty: another stream may still write it
requests.put(None)
worker.join()
