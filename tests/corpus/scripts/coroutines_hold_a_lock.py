"""An asyncio server: copy, replay and reading of one request are under a lock."""

import asyncio

import torch
from torch import nn


class Service:
    def __init__(self, model):
        self.x = torch.zeros(1, 4, device="cuda")
        self.lock = asyncio.Lock()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(self.x)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = model(self.x)

    async def answer(self, features):
        async with self.lock:
            self.x.copy_(features)
            await asyncio.sleep(0)
            self.graph.replay()
            y = self.y.clone()
        await asyncio.sleep(0)
        return y.sum().item()


async def main():
    model = nn.Linear(4, 1, bias=False).cuda().requires_grad_(False)
    nn.init.ones_(model.weight)
    service = Service(model)
    requests = [torch.full((1, 4), float(n), device="cuda") for n in range(3)]
    print(await asyncio.gather(*(service.answer(each) for each in requests)))


asyncio.run(main())
