"""A decorator that captures, with all that the graph needs in the closure."""

import functools

import torch


def graphed(shape):
    def decorate(function):
        static = torch.zeros(shape, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = function(static)

        @functools.wraps(function)
        def wrapper(x):
            static.copy_(x)
            graph.replay()
            return out.clone()

        return wrapper

    return decorate


@graphed((64,))
def double(x):
    return x * 2 + 1


first = double(torch.ones(64, device="cuda"))
second = double(torch.zeros(64, device="cuda"))
print((first - second).sum().item())  # eager: 128.0
