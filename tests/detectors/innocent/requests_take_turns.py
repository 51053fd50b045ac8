"""Requests under a lock, a loader thread, and requests that each fill their part of an input."""

import asyncio
import queue
import threading

import torch

x = torch.zeros(3, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.sum(1)
lock, loaded, answers = threading.Lock(), queue.Queue(), []


def serve(value):
    with lock:
        x.fill_(value)
        graph.replay()
        answers.append(y.sum().item())


def load():
    x.fill_(7)
    torch.cuda.current_stream().synchronize()
    loaded.put(True)


def run(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


for thread in [run(serve, value) for value in (1, 2, 3)]:
    thread.join()
x.zero_()
torch.cuda.synchronize()
loader = run(load)
loaded.get()
graph.replay()
answers.append(y.sum().item())
loader.join()

waiting = []


async def request(value, done):
    x[value].fill_(value)
    waiting.append(value)
    if len(waiting) == 3:
        graph.replay()
        done.set_result(y.tolist())
    return (await done)[value]


async def main():
    done = asyncio.get_running_loop().create_future()
    return await asyncio.gather(*(request(value, done) for value in range(3)))


print(answers, asyncio.run(main()))
