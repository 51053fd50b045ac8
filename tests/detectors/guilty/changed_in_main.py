"""All is in one function: the captured code shares its variables."""

import torch


def main():
    x = torch.ones(4, device="cuda")
    weights = {"a": 1.0}
    scale = 1.0
    bias = 0.0

    def step():
        return x * weights["a"] * scale + bias

    def shift(value):
        nonlocal bias
        bias = value  # <- python-scalar-frozen

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    for epoch in range(3):
        weights["a"] = 1.0 + epoch  # <- python-scalar-frozen
        scale = 2.0 + epoch  # <- python-scalar-frozen
        shift(epoch)
        graph.replay()
        print(y.sum().item())


main()
