"""After each replay another row of the output is kept, and all are read at the end."""

import torch

x = torch.zeros(4, 8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
    z = y + 1
    w = z - 1

best, parts, named = {}, [], []
for number in range(4):
    x.fill_(number)
    graph.replay()
    best[f"step{number}"] = y[number]  # <- output-overwritten-by-next-replay
    parts.append(z.unbind(0)[number])  # <- output-overwritten-by-next-replay
    named.append(("row", w[number : number + 1]))  # <- output-overwritten-by-next-replay
print({name: row.sum().item() for name, row in best.items()})
print(torch.stack(parts).sum().item(), [row.tolist() for _, row in named])
