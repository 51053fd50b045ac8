"""Two tasks replay one graph, and each waits before it reads its result."""

import asyncio

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


async def answer(value):
    x.fill_(value)
    graph.replay()
    out = y  # <- output-overwritten-by-next-replay
    await asyncio.sleep(0)
    return out.sum().item()


async def infer(value):
    await asyncio.sleep(0)
    x.fill_(value)
    graph.replay()
    return y  # <- output-overwritten-by-next-replay


async def serve(value):
    result = await infer(value)
    await asyncio.sleep(0)
    return result.sum().item()


async def main():
    print(await asyncio.gather(answer(1.0), answer(2.0)))
    print(await asyncio.gather(serve(1.0), serve(2.0)))


asyncio.run(main())
