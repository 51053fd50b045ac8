import asyncio

import torch

x = torch.zeros(2, 3, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        x * 2
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2


async def serve():
    loop = asyncio.get_running_loop()
    futures = []
    for i in range(3):
        x.fill_(float(i))
        graph.replay()
        future = loop.create_future()
        future.set_result(y[0])  # guilty: a view of the output
        futures.append(future)  # guilty: keeps a view of the output
    return [(await future)[0].item() for future in futures]


print(asyncio.run(serve()))  # eager: [0.0, 2.0, 4.0]
