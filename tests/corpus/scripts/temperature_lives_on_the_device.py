"""A thread of the server changes the temperature, which the graph reads from device memory."""

# `fill_` from another thread goes to the default stream, on which the replays run too.

import threading

import torch


class Sampler:
    def __init__(self, vocabulary):
        self.temperature = 1.0
        self.scale = torch.ones((), device="cuda")
        self.logits = torch.zeros(2, vocabulary, device="cuda")
        self.lock = threading.Lock()

    def set_temperature(self, value):
        with self.lock:
            self.temperature = value
            self.scale.fill_(1.0 / value)

    def forward(self):
        return torch.softmax(self.logits * self.scale, dim=-1)

    def build(self):
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.probabilities = self.forward()


sampler = Sampler(8)
sampler.build()
for step in range(4):
    if step == 2:
        thread = threading.Thread(target=sampler.set_temperature, args=(0.2,))
        thread.start()
        thread.join()
    with sampler.lock:
        sampler.logits.copy_(torch.arange(16.0).reshape(2, 8))
        sampler.graph.replay()
        print(sampler.temperature, sampler.probabilities.max().item())
