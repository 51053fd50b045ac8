"""A server queues the answers of its graph and sends them when the batch is done."""

import collections
from typing import NamedTuple

import torch


class Answer(NamedTuple):
    logits: torch.Tensor
    extra: dict


class Server:
    def __init__(self, size):
        self.x = torch.zeros(size, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.forward()
        with torch.cuda.graph(self.graph):
            self.answer = self.forward()

    def forward(self):
        logits = self.x * 2
        return Answer(logits, {"best": [logits.max()]})

    def __call__(self, batch):
        self.x.copy_(batch)
        self.graph.replay()  # guilty: overwrites the answers in the queue
        return self.answer


server = Server(4)
queue = collections.deque()
for request in (1.0, 2.0, 3.0):
    queue.append(server(torch.full((4,), request, device="cuda")))  # guilty: keeps no copy
print([answer.extra["best"][0].item() for answer in queue])  # eager: [2.0, 4.0, 6.0]
