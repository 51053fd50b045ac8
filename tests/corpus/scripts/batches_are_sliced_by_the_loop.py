"""A notebook turned script: the captured function slices the data set by the loop's variable."""

import torch
from torch import nn

torch.manual_seed(0)
data = torch.arange(32.0, device="cuda").view(32, 1)
model = nn.Linear(1, 1).cuda().requires_grad_(False)
nn.init.ones_(model.weight)
nn.init.zeros_(model.bias)
size, i = 8, 0


def evaluate():
    rows = data[i * size : (i + 1) * size]  # guilty: `i` is a number of the capture
    return model(rows).mean()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    evaluate()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    mean = evaluate()  # guilty: of the first rows

means = []
for i in range(4):  # noqa: B007  # guilty: the graph does not see it
    graph.replay()
    means.append(mean.item())
print(means)  # eager: [3.5, 11.5, 19.5, 27.5]
