"""A thread of the server changes the temperature while the decode loop replays its graph."""

# `logits / self.temperature` hands a Python float to the kernel.

import threading

import torch


class Sampler:
    def __init__(self, vocabulary):
        self.temperature = 1.0
        self.logits = torch.zeros(2, vocabulary, device="cuda")

    def forward(self):
        return torch.softmax(
            self.logits / self.temperature, dim=-1
        )  # guilty: the temperature of the capture

    def build(self):
        self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.probabilities = self.forward()


sampler = Sampler(8)
sampler.build()


def admin():
    sampler.temperature = 0.2  # guilty: replays do not see it


for step in range(4):
    if step == 2:
        thread = threading.Thread(target=admin)
        thread.start()
        thread.join()
    sampler.logits.copy_(torch.arange(16.0).reshape(2, 8))
    sampler.graph.replay()
    print(sampler.probabilities.max().item())
