"""Two experts with a pool each are replayed on two streams at once, and joined."""

import torch
from torch import nn

torch.manual_seed(0)
experts = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).cuda() for _ in "ab"]
inputs = [torch.zeros(16, 64, device="cuda") for _ in experts]
streams = [torch.cuda.Stream() for _ in experts]
graphs, outputs = [], []
with torch.no_grad():
    for expert, x, stream in zip(experts, inputs, streams, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            expert(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs.append(expert(x))
        graphs.append(graph)

for _ in range(3):
    tokens = torch.randn(32, 64, device="cuda")
    here = torch.cuda.current_stream()
    for x, part in zip(inputs, tokens.split(16), strict=True):
        x.copy_(part)
    for graph, stream in zip(graphs, streams, strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            graph.replay()
    for stream in streams:
        here.wait_stream(stream)
    print(torch.cat(outputs).sum().item())
