"""A helper has a variable of the same name."""

import torch

x = torch.zeros((), device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        torch.mul(x, 2)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = x * 2


def replayed(value):
    x.fill_(value)
    graph.replay()
    return out


def sample(value):
    best = replayed(value)
    print(best.shape)
    return best


def main():
    best, seen = None, 0
    for value in (3.0, 1.0, 2.0):
        y = sample(value)
        seen += 1
        if best is None or y.item() > 5:
            best = y  # <- output-overwritten-by-next-replay
    print(best.item(), seen)


main()
