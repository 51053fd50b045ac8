"""What eager code makes of an output on one stream is used on another, which does not wait."""

import torch

x = torch.zeros(8, device="cuda")
kept = torch.zeros(8, device="cuda")
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1

side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    graph.replay()
    answer = y.clone()
    rows = answer.view(2, 4)
    kept.copy_(y)
    # To record a stream keeps the memory, and orders nothing.
    answer.record_stream(torch.cuda.default_stream())
print(answer.sum().item())  # <- unsynchronized-io
side.synchronize()

with torch.cuda.stream(side):
    graph.replay()
    kept.copy_(y)
print(kept[:2].sum().item())  # <- unsynchronized-io
side.synchronize()

with torch.cuda.stream(side):
    graph.replay()
    rows = y.clone().view(2, 4)
total = rows * 2  # <- unsynchronized-io
side.synchronize()

with torch.cuda.stream(side):
    graph.replay()
    answer = y.clone()
answer.add_(1)  # <- unsynchronized-io
side.synchronize()

with torch.cuda.stream(side):
    graph.replay()
    token = torch.softmax(y, -1).argmax()
print(token.item())  # <- unsynchronized-io
