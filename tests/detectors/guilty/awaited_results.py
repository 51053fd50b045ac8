"""Coroutines return the output itself, and wait after the replay, or are gathered."""

import asyncio

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
x.mul(2).sum()
with torch.cuda.graph(graph):
    y = x * 2
    score = y.sum()


async def infer(v):
    x.fill_(v)
    graph.replay()
    await asyncio.sleep(0)
    return y  # <- output-overwritten-by-next-replay


async def main():
    first = await infer(1.0)
    second = await infer(2.0)
    await asyncio.sleep(0)
    print(first.sum().item(), second.sum().item())
    answers = infer(3.0), infer(4.0)
    third, fourth = await asyncio.gather(*answers)  # <- output-overwritten-by-next-replay
    print(third.sum().item(), fourth.sum().item())


asyncio.run(main())
