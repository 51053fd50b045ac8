"""Encoders are captured again for each width, and another graph reads what they write."""

# The first encoding is kept, and all answers are compared with it.

import torch

x = torch.ones(4, 8, device="cuda")


def captured(work):
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


first = None
for width in (8, 6, 4):
    encoder, code = captured(lambda: x[:, :width].exp().mean(1))  # noqa: B023
    decoder, answer = captured(lambda: code.log())  # noqa: B023
    first = code if first is None else first
    encoder.replay()
    decoder.replay()
    print(width, (first.log() - answer).abs().max().item())
