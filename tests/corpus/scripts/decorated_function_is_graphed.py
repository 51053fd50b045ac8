"""A decorator captures a function at its first call for each shape and dtype."""

import functools

import torch


def cuda_graphed(warmup=2):
    def decorate(fn):
        cache = {}

        @functools.wraps(fn)
        def wrapper(*args):
            key = tuple((a.shape, a.dtype) for a in args)
            if key not in cache:
                static = [a.clone() for a in args]
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(warmup):
                        fn(*static)
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = fn(*static)
                cache[key] = static, graph, out
            static, graph, out = cache[key]
            for own, given in zip(static, args, strict=True):
                own.copy_(given)
            graph.replay()
            return out.clone()

        wrapper.cache = cache
        return wrapper

    return decorate


@cuda_graphed()
def normalize(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


weight = torch.ones(8, device="cuda")
outs = [normalize(torch.full((n, 8), float(n), device="cuda"), weight) for n in (2, 3, 2, 4, 3)]
weight.mul_(2)
outs.append(normalize(torch.ones(2, 8, device="cuda"), weight))
print([o.sum().item() for o in outs], len(normalize.cache))
