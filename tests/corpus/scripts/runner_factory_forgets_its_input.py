"""A function that captures returns the graph and the output, but not what the graph reads."""

import torch


def make_runner(function, shape):
    static = torch.zeros(shape, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(static)  # guilty: reads what is freed when the function returns
    return graph, out


runner, result = make_runner(lambda x: x * 2 + 1, (64,))  # guilty: here too
other = torch.full((64,), 7.0, device="cuda")
runner.replay()
print(result.sum().item())  # eager: 64.0
