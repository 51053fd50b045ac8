"""An asyncio server: each request has the result of its replay while it waits for the client."""

import asyncio

import torch
from torch import nn


class Service:
    def __init__(self, model):
        self.x = torch.zeros(1, 4, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(self.x)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = model(self.x)

    def __call__(self, features):
        self.x.copy_(features)
        self.graph.replay()
        return self.y  # guilty: each request gets the same tensor


async def answer(service, features):
    scores = service(features)  # guilty: the next request's replay overwrites it
    await asyncio.sleep(0)  # guilty: lets another request replay
    return scores.sum().item()


async def main():
    model = nn.Linear(4, 1, bias=False).cuda().requires_grad_(False)
    nn.init.ones_(model.weight)
    service = Service(model)
    requests = [torch.full((1, 4), float(n), device="cuda") for n in range(3)]
    print(await asyncio.gather(*(answer(service, each) for each in requests)))
    # eager: [0.0, 4.0, 8.0]


asyncio.run(main())
