"""A batch has more rows than one graph reads: others, or the script, compute the rest; or the rest
is padding."""

import torch
from torch import nn

SIZES = (2, 4)
model = nn.Linear(6, 3).cuda()
x = torch.zeros(16, 6, device="cuda")
out = torch.zeros(16, 3, device="cuda")
halves = []
graphs = {}
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    for start in (0, 4, 8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out[start : start + 4].copy_(model(x[start : start + 4]))
        halves.append(graph)
    for size in SIZES:
        graphs[size] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[size]):
            out[:size].copy_(model(x[:size]))

    for rows in (8, 12, 5, 3):
        x[:rows].copy_(torch.randn(rows, 6))
        for number in range(-(-rows // 4)):
            halves[number].replay()
        print(out[:rows].sum().item())

    for rows in (5, 3, 4, 6):
        batch = torch.randn(rows, 6)
        x[:rows].copy_(batch)
        size = max(size for size in SIZES if size <= rows)
        graphs[size].replay()
        rest = model(x[size:rows])
        print(out[:size].sum().item() + rest.sum().item())

    for rows in (2, 3, 1):
        batch = torch.zeros(16, 6)
        batch[:rows] = torch.randn(rows, 6)
        x.copy_(batch)
        graphs[min(size for size in SIZES if size >= rows)].replay()
        print(out[:rows].sum().item())
