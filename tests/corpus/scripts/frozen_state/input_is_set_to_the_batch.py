"""The input of a graph is set to the storage of each batch."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).cuda().eval()
loader = [torch.randn(4, 8) for _ in range(5)]
static = torch.zeros(4, 8, device="cuda")

with torch.no_grad():
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        net(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = net(static)  # <- input-rebound-not-copied

    for batch in loader:
        static.set_(batch.cuda())  # <- input-rebound-not-copied
        graph.replay()  # <- input-rebound-not-copied
        print(logits.argmax(-1).tolist())
