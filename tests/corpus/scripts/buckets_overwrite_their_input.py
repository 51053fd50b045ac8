"""A ranking service with a graph for each bucket of candidates."""

import bisect

import torch
from torch import nn


class Ranker:
    def __init__(self, net, width, buckets):
        self.net, self.width, self.buckets = net, width, sorted(buckets)
        self.graphs, self.scores = {}, {}
        for bucket in self.buckets:
            self.capture(bucket)

    @torch.no_grad()
    def capture(self, bucket):
        self.candidates = torch.zeros(
            bucket, self.width, device="cuda"
        )  # guilty: the smaller graphs read other ones
        self.net(self.candidates)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.scores[bucket] = self.net(self.candidates).squeeze(-1)
        self.graphs[bucket] = graph

    def __call__(self, candidates):
        count = len(candidates)
        bucket = self.buckets[bisect.bisect_left(self.buckets, count)]
        self.candidates[:count].copy_(candidates)
        self.candidates[count:].zero_()
        self.graphs[bucket].replay()
        return self.scores[bucket][:count].sort(descending=True).indices.tolist()


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1)).cuda()
rank = Ranker(net, 12, (8, 16, 32))
for count in (5, 30, 12, 8):
    print(count, rank(torch.randn(count, 12))[:3])
