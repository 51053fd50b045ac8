"""The output of one graph is the input of the next; both share a pool."""

import torch

x = torch.zeros(4, device="cuda")
(x + 1) * 2
pool = torch.cuda.graph_pool_handle()
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first, pool=pool):
    h = x + 1
with torch.cuda.graph(second, pool=pool):
    y = h * 2

results = []
for number in range(3):
    x.fill_(number)
    first.replay()
    second.replay()
    results.append(y[0].item())
print(results)  # eager: [2.0, 4.0, 6.0]
