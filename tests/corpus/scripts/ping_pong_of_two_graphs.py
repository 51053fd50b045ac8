"""Two graphs for the two directions of a double buffer."""

import torch

a, b = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
torch.add(a, 1, out=b)
b.zero_()
graphs = []
for source, target in ((a, b), (b, a)):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(source, 1, out=target)
    graphs.append(graph)

for number in range(5):
    graphs[number % 2].replay()
print(b.item())  # eager: 5.0
