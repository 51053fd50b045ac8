"""An asyncio server: a request yields to the others between its copy and its replay."""

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

    async def answer(self, features):
        self.x.copy_(features)  # guilty: another request may copy before this one replays
        await asyncio.sleep(0)  # guilty: lets another request overwrite the input
        self.graph.replay()  # guilty: perhaps with the input of another request
        return self.y.sum().item()


async def main():
    model = nn.Linear(4, 1, bias=False).cuda().requires_grad_(False)
    nn.init.ones_(model.weight)
    service = Service(model)
    requests = [torch.full((1, 4), float(n), device="cuda") for n in range(3)]
    print(await asyncio.gather(*(service.answer(each) for each in requests)))
    # eager: [0.0, 4.0, 8.0]


asyncio.run(main())
