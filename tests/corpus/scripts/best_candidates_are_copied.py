"""Best of n with a heap of bounded size: a candidate is copied only if it is good enough."""

import heapq
import itertools

import torch
from torch import nn


class Sampler:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).cuda()
        self.judge = nn.Linear(8, 1).cuda()
        self.noise = torch.zeros(1, 8, device="cuda")

    def draw(self):
        latent = self.noise + self.net(self.noise)
        return latent, self.judge(latent).squeeze()

    def capture(self):
        self.draw()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.latent, self.score = self.draw()

    def stream(self):
        while True:
            self.noise.normal_()
            self.graph.replay()
            yield self.score.item(), self.latent


def best_of(candidates, count, keep=2):
    heap, order = [], itertools.count()
    for score, latent in itertools.islice(candidates, count):
        if len(heap) < keep:
            heapq.heappush(heap, (score, next(order), latent.clone()))
        elif score > heap[0][0]:
            heapq.heapreplace(heap, (score, next(order), latent.clone()))
    return sorted(heap, reverse=True)


torch.manual_seed(3)
with torch.no_grad():
    sampler = Sampler()
    sampler.capture()
    for score, _, latent in best_of(sampler.stream(), 6):
        print(round(score, 4), latent.tolist())
