"""Two experts are captured into one pool to save memory, and replayed on two streams at once."""

import torch
from torch import nn

torch.manual_seed(0)
experts = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).cuda() for _ in "ab"]
inputs = [torch.zeros(16, 64, device="cuda") for _ in experts]
streams = [torch.cuda.Stream() for _ in experts]
graphs, outputs, pool = [], [], torch.cuda.graph_pool_handle()
with torch.no_grad():
    for expert, x in zip(experts, inputs, strict=True):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            expert(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
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
            graph.replay()  # <- shared-pool-concurrent-replay
    for stream in streams:
        here.wait_stream(stream)
    print(torch.cat(outputs).sum().item())
