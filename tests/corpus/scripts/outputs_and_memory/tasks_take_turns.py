"""Tasks and generators replay one graph in turn, and read a result before the next replay; or watch
what the last one computed."""

import asyncio

import torch

x = torch.zeros(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


def run(value):
    x.fill_(value)
    graph.replay()
    return y


async def locked(lock, value):
    out = None
    for step in range(3):
        async with lock:
            out = run(value + step)
            await asyncio.sleep(0)
            total = out.sum().item()
        await asyncio.sleep(0)
        print(total)


async def copied(value):
    out = run(value).clone()
    await asyncio.sleep(0)
    return out.sum().item()


async def watch(out):
    for _ in range(3):
        await asyncio.sleep(0)
        print("now", out.tolist())


async def main():
    lock = asyncio.Lock()
    await asyncio.gather(*(locked(lock, value) for value in (1.0, 20.0)))
    print(await asyncio.gather(copied(1.0), copied(2.0)))
    watcher = asyncio.create_task(watch(y))
    for value in (1.0, 2.0, 3.0):
        result = run(value)
        await asyncio.sleep(0)
        print(result.tolist())
    await watcher


def results():
    out = run(1.0)
    yield out
    print(out.tolist())


def ended():
    """Each gets the memory of the frame of the last one."""
    for _ in range(4):
        generator = results()
        print(next(generator).tolist())
        try:
            generator.throw(ValueError())
        except ValueError:
            out = run(2.0)
            print(out.tolist())


asyncio.run(main())
ended()
